"""The modules that a command imports before it parses its arguments."""

import subprocess
import sys


def test_help_imports_no_flow_database_or_redis() -> None:
    heavy = {"sqlalchemy", "redis", "celery", "pydantic", "pipeline.settings", "pipeline.flows", "pipeline.storage"}
    program = f"import sys, pipeline.interfaces.cli.main; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
