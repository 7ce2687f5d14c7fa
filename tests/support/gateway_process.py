"""An instance of the gateway as a process: `python -m tests.support.gateway_process`.

It works like `penstock gateway`, but without the command line, which takes longer to import than the rest.
"""

from pipeline.engine.logs import configure
from pipeline.interfaces.gateway.server import listen, serve
from pipeline.nodes.settings import gateway_settings
from pipeline.process import get_context

if __name__ == "__main__":
    context = get_context()
    configure("INFO", as_json=False)
    settings = gateway_settings(context.settings)
    serve(context, listen(context, settings.host, settings.port))
