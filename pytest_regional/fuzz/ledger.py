"""What a campaign knows: findings of earlier campaigns, of other shards, and its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pytest_regional.fuzz.campaign import CampaignResult
    from pytest_regional.fuzz.findings import AnyFinding
    from pytest_regional.fuzz.signature import Signature

F = TypeVar("F", bound="AnyFinding")


class Ledger(Generic[F]):
    """The findings of one campaign.

    Args:
        elsewhere: gives what is known outside of this campaign; asked again before a failure is taken for new.
        result: where new findings are entered.
        found: called with each new finding.
    """

    def __init__(
        self, elsewhere: Callable[[], Iterable[F]], result: CampaignResult, found: Callable[[F], Any] | None
    ) -> None:
        self._elsewhere, self._result, self._found = elsewhere, result, found
        self.known = list(elsewhere())

    def explanation(self, signature: Signature, *possible: frozenset[str]) -> F | None:
        """Return the finding that a failure with ``signature`` of what has one of the ``possible`` features may be."""
        for finding in chain(self.known, self._of_others()):
            if any(finding.signature.covers(signature, features) for features in possible):
                return finding
        return None

    def _of_others(self) -> Iterator[F]:
        """Yield what other shards found since; only asked where nothing else explains a failure."""
        names = {finding.name for finding in self.known}
        new = [finding for finding in self._elsewhere() if finding.name not in names]
        self.known += new
        yield from new

    def enter(self, finding: F) -> F:
        """Enter ``finding``, or return the one of its name that is known."""
        known = next((one for one in self.known if one.name == finding.name), None)
        if known is not None:
            return known
        self.known.append(finding)
        self._result.findings.append(finding)
        self._result.first_seen[finding.name] = self._result.examples
        if self._found is not None:
            self._found(finding)
        return finding


__all__ = ["Ledger"]
