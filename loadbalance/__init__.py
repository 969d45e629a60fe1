if __name__ != "magnetar.loadbalance":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.loadbalance: loadbalance/ is found by its link in magnetar/")
