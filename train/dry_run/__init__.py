"""`atommem train --dry_run`: checks settings and estimates memory and time."""
