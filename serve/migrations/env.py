"""How alembic reaches the database: over the connection of whoever asks (`atommem.serve.schema.open_database`)."""

from alembic import context

from atommem.serve.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
