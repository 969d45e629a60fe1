"""Which changes of a ledger's stored metadata are legal: the judge of simulators and tests."""

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


def transition_error(old: LedgerMetadata, new: LedgerMetadata) -> str | None:
    """Why ``old`` may not become ``new``, or None."""
    fixed = ("ledger_id", "ensemble_size", "write_quorum", "ack_quorum", "password", "digest_type")
    for name in (*fixed, "created_ms", "creator_token"):
        if getattr(old, name) != getattr(new, name):
            return f"{name} changed"
    allowed = {
        LedgerState.OPEN: set(LedgerState),
        LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
        LedgerState.CLOSED: {LedgerState.CLOSED},
    }
    if new.state not in allowed[old.state]:
        return f"{old.state} to {new.state}"
    old_keys = [segment.first_entry for segment in old.segments]
    new_keys = [segment.first_entry for segment in new.segments]
    if new_keys[: len(old_keys)] != old_keys:
        return "a segment key was removed or changed"
    if new.state is LedgerState.CLOSED and new_keys[-1] > new.last_entry + 1:
        return "last segment key beyond the end"
    if old.state is LedgerState.CLOSED:
        if (old.last_entry, old.length) != (new.last_entry, new.length):
            return "the end of a closed ledger changed"
        if old_keys != new_keys:
            return "segments added to a closed ledger"
    elif new.state is not LedgerState.CLOSED and (new.last_entry, new.length) != (-1, 0):
        return "end set before close"
    if new.state is LedgerState.IN_RECOVERY and new.last_segment != old.last_segment:
        return "a recovery published a segment before close"
    return None
