if __name__ != "magnetar.broker":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.broker: broker/ is found by its link in magnetar/")
