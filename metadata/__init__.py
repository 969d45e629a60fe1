if __name__ != "magnetar.metadata":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.metadata: metadata/ is found by its link in magnetar/")
