"""Conversations, their events, operations, snapshots and vectors; keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("revoked_at", sa.Integer(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("max_body_bytes", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_conversations_owner"), "conversations", ["owner"], unique=False)
    op.create_table(
        "events",
        sa.Column("conversation", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("of", sa.Integer(), nullable=True),
        sa.Column("chunks", sa.Integer(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=True),
        sa.Column("response", sa.String(length=64), nullable=True),
        sa.Column("checkpoint", sa.String(length=64), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
        ),
        sa.PrimaryKeyConstraint("conversation", "version"),
        sa.UniqueConstraint("conversation", "step"),
    )
    op.create_index(op.f("ix_events_response"), "events", ["response"], unique=False)
    op.create_table(
        "operations",
        sa.Column("conversation", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("entry_id", sa.Integer(), nullable=True),
        sa.Column("handle", sa.Integer(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("actor", sa.String(length=256), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("scores", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("source", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rest", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("checkpoint", sa.String(length=64), nullable=False),
        sa.Column("embedder", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
        ),
        sa.PrimaryKeyConstraint("conversation", "seq"),
    )
    op.create_table(
        "snapshots",
        sa.Column("conversation", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
        ),
        sa.PrimaryKeyConstraint("conversation", "seq"),
    )
    op.create_table(
        "vectors",
        sa.Column("conversation", sa.String(length=64), nullable=False),
        sa.Column("embedder", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("row", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
        ),
        sa.PrimaryKeyConstraint("conversation", "embedder", "digest"),
    )
