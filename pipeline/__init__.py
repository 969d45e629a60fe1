if __name__ != "magnetar.pipeline":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.pipeline: pipeline/ is found by its link in magnetar/")
