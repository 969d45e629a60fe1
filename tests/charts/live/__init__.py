"""Rung three of the chart's tests: a kubelet of our own that runs pods as local processes."""
