"""`atommem train --dry_run`: checks every setting and estimates memory and time, without weights, GPU or network."""
