"""Requests that may be repeated, by their keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "requests",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("conversation", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
        ),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(op.f("ix_requests_conversation"), "requests", ["conversation"], unique=False)
