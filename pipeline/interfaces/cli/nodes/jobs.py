"""`penstock jobs …`: the jobs of nodes."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.ids import whole_job
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.nodes.views import JobView

JobId = Annotated[
    str, typer.Argument(metavar="ID", callback=whole_job, help="See `penstock jobs list`; may be shortened.")
]
app = typer.Typer(
    help="Jobs of inference nodes, while they are done and for some minutes after: list, show, cancel. "
    "`penstock calls` shows the calls that they answered.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_(
    in_state: Annotated[
        str,
        typer.Option(
            "--state", help="Only jobs in this state: created, dispatched, accepted, running, finished, released."
        ),
    ] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from pipeline.nodes.job import JobState
    from pipeline.operations import nodes as inference

    if in_state and in_state.upper() not in set(JobState):
        raise typer.BadParameter(f"choose from {', '.join(JobState).lower()}", param_hint="--state")

    def row(job: "JobView") -> list[str]:
        model = one_line(f"{job.capability} {job.model}", 40)
        tries = f"{job.attempt}/{job.max_attempts}"
        return [job.job_id, _how(job), model, tries, job.node_id, one_line(job.token), ago(job.created_at)]

    columns = ("ID", "STATE", "WHAT~", "TRIES>", "NODE", "FOR?", "CREATED")
    ready()
    jobs = inference.jobs(JobState(in_state.upper()) if in_state else None, limit)
    print_list(jobs, columns, row, as_json=as_json, none="No jobs.")


@app.command()
def show(job: JobId, as_json: Json = False) -> None:
    """Show a job: its state, its session, its node, and its error."""
    from pipeline.operations import nodes as inference

    ready()
    _show(inference.job(job), as_json=as_json)


@app.command()
def cancel(job: JobId, as_json: Json = False) -> None:
    """Cancel a job: the sessions that wait for it get the error `cancelled`, and its node stops.

    The pipeline retries its page; penstock documents cancel ends that too.
    """
    from pipeline.nodes.job import DONE
    from pipeline.operations import nodes as inference

    ready()
    view = inference.cancel_job(job)
    if as_json:
        print_json(view)
    elif view.state not in DONE:
        err.print(f"{view.job_id}: its gateway will cancel it")
    else:
        err.print(f"{view.job_id}: {'cancelled' if view.outcome == 'cancelled' else 'it had already ended'}")


def _show(job: "JobView", *, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    error = f"{job.error_code}: {job.error}" if job.error_code else ""
    print_pairs(
        [
            ("job", job.job_id),
            ("state", _how(job)),
            ("what", one_line(f"{job.capability} {job.model}")),
            ("attempt", f"{job.attempt} of {job.max_attempts}"),
            ("node", job.node_id or "none yet"),
            ("for", one_line(f"{job.token} ({job.token_id})")),
            ("scheduled by", one_line(job.instance_id)),
            ("created", ago(job.created_at)),
            ("finished", ago(job.finished_at)),
            *([("error", one_line(error))] if error else []),
        ]
    )


def _how(job: "JobView") -> str:
    ended = f" ({job.outcome})" if job.outcome else ""
    return f"{state(job.state)}{ended}"
