"""Metadata in ZooKeeper. Entry point: ``metadata.zookeeper.store.ZooKeeperStore.connect``."""
