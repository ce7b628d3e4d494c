"""In which order rollouts are listed, and how a page goes on behind the last one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.errors import InvalidSelection, RolloutNotFound
from osmosis_store.schema import grades, rollouts

__all__ = ["RolloutOrder"]

_KEYS = ("id", "started", "duration", "reward")


@dataclass(frozen=True)
class RolloutOrder:
    """By a key, then by id; what has no such value comes last either way."""

    key: str = "id"
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> RolloutOrder:
        """Return the order for a key's name, with `-` before it from the greatest down.

        Raises:
            InvalidSelection: There is no such key.
        """
        order = cls(text.removeprefix("-"), text.startswith("-"))
        if order.key not in _KEYS:
            raise InvalidSelection(
                f"rollouts cannot be sorted by {text!r}",
                hint=f"known: {', '.join(_KEYS)}; with - before it from the greatest down",
            )
        return order

    def sort(self, tx: Connection, statement: sa.Select[Any], after: str | None) -> sa.Select[Any]:
        """Return a statement over `rollouts` in this order, behind the rollout `after`.

        Raises:
            RolloutNotFound: There is no rollout `after`, and its place in this order is not known.
        """
        by_id = rollouts.c.rollout_id
        if self.key == "id":
            if after is not None:
                statement = statement.where(by_id < after if self.descending else by_id > after)
            return statement.order_by(by_id.desc() if self.descending else by_id)
        value = _VALUES[self.key](tx)
        if after is not None:
            statement = statement.where(self._behind(tx, value, after))
        ordered = value.desc() if self.descending else value
        return statement.order_by(ordered.nulls_last(), by_id)

    def _behind(
        self, tx: Connection, value: sa.ColumnElement[Any], after: str
    ) -> sa.ColumnElement[bool]:
        by_id = rollouts.c.rollout_id
        row = tx.execute(sa.select(value).where(by_id == after)).one_or_none()
        if row is None:
            raise RolloutNotFound(after)
        if row[0] is None:
            return sa.and_(value.is_(None), by_id > after)
        return sa.or_(
            value < row[0] if self.descending else value > row[0],
            sa.and_(value == row[0], by_id > after),
            value.is_(None),
        )


def _started(tx: Connection) -> sa.ColumnElement[Any]:
    return rollouts.c.started_at


def _duration(tx: Connection) -> sa.ColumnElement[Any]:
    """Return microseconds from start to end."""
    if tx.dialect.name == "postgresql":
        length = sa.extract("epoch", rollouts.c.ended_at - rollouts.c.started_at)
        return sa.cast(length * 1_000_000, sa.BigInteger)
    ended, started = (
        _seconds(column) * 1_000_000 + sa.cast(sa.func.substr(column, 21, 6), sa.BigInteger)
        for column in (rollouts.c.ended_at, rollouts.c.started_at)
    )
    return ended - started


def _seconds(column: sa.Column[Any]) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.strftime("%s", column), sa.BigInteger)


def _reward(tx: Connection) -> sa.ColumnElement[Any]:
    """Return the mean of the newest rewards of a rollout's samples."""
    newer = grades.alias("newer_grades")
    newest = (
        sa.select(sa.func.max(newer.c.grade_no))
        .where(newer.c.rollout_id == grades.c.rollout_id, newer.c.sample_id == grades.c.sample_id)
        .correlate(grades)
    )
    return (
        sa.select(sa.func.avg(grades.c.reward))
        .where(
            grades.c.rollout_id == rollouts.c.rollout_id,
            grades.c.removed.is_(False),
            grades.c.grade_no == newest.scalar_subquery(),
        )
        .correlate(rollouts)
        .scalar_subquery()
    )


_VALUES = {"started": _started, "duration": _duration, "reward": _reward}
