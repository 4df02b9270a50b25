"""The tables of the first databases, which those of today are made with at once (`atommem.serve.schema`)."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: who is here has them."""
