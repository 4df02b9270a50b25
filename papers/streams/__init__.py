"""Addition and deletion of experience on any stream, with three examples."""
