if __name__ != "magnetar.bookkeeper":  # the checkout itself is on sys.path
    raise ImportError("import magnetar.bookkeeper: bookkeeper/ is found by its link in magnetar/")
