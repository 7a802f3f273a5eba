"""What a study's app names as its code: it only says how server and sites are started instead."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from consilience.errors import InputError

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Refuse to train.

    Raises:
        InputError: Always.
    """
    raise InputError("Start this site with `consilience site serve`, which runs the site's own code only.")


@client.query()
def query(message: Message, context: Context) -> Message:
    """Refuse to answer.

    Raises:
        InputError: Always.
    """
    raise InputError("Start this site with `consilience site serve`, which runs the site's own code only.")


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Refuse to start.

    Raises:
        InputError: Always.
    """
    raise InputError("Start the study with `consilience study serve`.")
