if __name__ != "magnetar.bundles":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.bundles: bundles/ is found by its link in magnetar/")
