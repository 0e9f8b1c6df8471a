"""What several scripts do: how they and their jobs are started, how ranks are timed, and what they multiply or train."""
