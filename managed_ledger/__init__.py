if __name__ != "magnetar.managed_ledger":  # the checkout itself is on sys.path
    raise ImportError(
        "import magnetar.managed_ledger: managed_ledger/ is found by its link in magnetar/"
    )
