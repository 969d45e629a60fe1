"""Auto-recovery: finds ledgers that miss replicas and copies them. See README.md."""
