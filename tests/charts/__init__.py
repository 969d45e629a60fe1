"""The Helm chart: its renderings by our rules, and what a real control plane makes of it."""
