from prometheus_client.parser import text_string_to_metric_families

from pipeline.nodes.gateway.metrics import Facts, dispatch_histogram, exposition


def scraped(facts: Facts) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(exposition(facts).decode())
    return {(sample.name, frozenset(sample.labels.items())): sample.value for of in families for sample in of.samples}


def test_an_instance_exports_its_own_metrics() -> None:
    dispatch = dispatch_histogram()
    dispatch.observe(0.004)
    dispatch.observe(400)
    facts = Facts({("xadd", "ok"): 7, ("finish", "error"): 1}, nodes=2, sessions=1, inbox_pending=3, dispatch=dispatch)
    samples = scraped(facts)
    name = "penstock_gateway_"
    assert samples[f"{name}redis_op_total", frozenset({("op", "xadd"), ("result", "ok")})] == 7
    assert samples[f"{name}redis_op_total", frozenset({("op", "finish"), ("result", "error")})] == 1
    assert samples[f"{name}connections", frozenset({("kind", "node")})] == 2
    assert samples[f"{name}connections", frozenset({("kind", "session")})] == 1
    assert samples[f"{name}inbox_pending", frozenset()] == 3
    assert samples[f"{name}dispatch_seconds_bucket", frozenset({("le", "0.005")})] == 1
    assert samples[f"{name}dispatch_seconds_bucket", frozenset({("le", "300.0")})] == 1
    assert samples[f"{name}dispatch_seconds_count", frozenset()] == 2
    assert scraped(facts) == samples, "reading changes nothing"


def test_unknown_figures_are_left_out() -> None:
    samples = scraped(Facts({}, nodes=0, sessions=0, inbox_pending=-1, dispatch=dispatch_histogram()))
    assert ("penstock_gateway_inbox_pending", frozenset()) not in samples
