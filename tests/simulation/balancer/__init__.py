"""A cluster as the balancer sees it: brokers that serve bundles, report late, die and come back."""
