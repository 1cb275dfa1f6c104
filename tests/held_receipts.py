"""Receipts, or noted heads, held against a whole export of the ledger: what a client and an auditor do in two steps."""

from __future__ import annotations

from dpswd.shared.books.chain_checks import check_chain, hold_receipts


def verify_receipts(export, receipts, public_key):
    """Findings; empty exactly when the export is one unbroken signed chain that contains every receipt."""
    findings = check_chain(export, public_key)
    hashes = {entry.seq: entry.hash for entry in export}
    return (*findings, *hold_receipts(receipts, hashes, max(hashes, default=0), public_key))
