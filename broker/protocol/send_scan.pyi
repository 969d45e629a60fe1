from magnetar.broker.protocol.plain_sends import Run

def scan_sends(
    view: memoryview, start: int, end: int, body_max: int, metadata_max: int
) -> Run | None: ...
