"""Turns an expression into nodes that can be evaluated again and again."""

from __future__ import annotations

from datetime import timedelta

import promql_parser as pp

from perfd.rules.label_matchers import METRIC_NAME_LABEL, Matcher, MatcherSet
from perfd.rules.problems import Problem, TextError
from perfd.rules.promql import aggregations, functions, range_vectors
from perfd.rules.promql.instant_vectors import (
    COMPARISONS,
    SET_OPERATORS,
    InstantSelector,
    Query,
    ScalarNode,
    VectorNode,
    scalar_binary,
    scalar_of,
    set_operator,
    vector_binary,
    vector_of,
    vector_scalar,
)
from perfd.rules.promql.range_vectors import RangeSelector
from perfd.rules.promql.syntax import parse
from perfd.rules.promql.vector_matching import VectorMatching

# Pairs, as the parser's enumerations cannot be keys of a dictionary.
_OPERATORS = (
    (pp.MatchOp.Equal, "="),
    (pp.MatchOp.NotEqual, "!="),
    (pp.MatchOp.Re, "=~"),
    (pp.MatchOp.NotRe, "!~"),
)
_MANY_SIDES = (
    (pp.VectorMatchCardinality.ManyToOne, "left"),
    (pp.VectorMatchCardinality.OneToMany, "right"),
)
_LABEL_FUNCTIONS = {"label_replace", "label_join"}
_NO_EFFECT = {"sort", "sort_desc"}
"""The results of rules have no order."""


def compile_query(text: str) -> Query:
    """Compile an expression; raises `TextError` as `parse` does."""
    tree = parse(text)
    compiler = _Compiler()
    try:
        node = compiler.as_vector(tree)
    except (NotImplementedError, ValueError) as error:
        raise TextError([Problem(str(error), 0)]) from error
    except OverflowError as error:
        raise TextError([Problem("a duration is too long", 0)]) from error
    return Query(text, tuple(selector.read() for selector in compiler.selectors), node)


def _ms(duration: timedelta | None) -> int:
    return 0 if duration is None else round(duration / timedelta(milliseconds=1))


def _unwrapped(tree: pp.Expr) -> pp.Expr:
    while isinstance(tree, pp.ParenExpr):
        tree = tree.expr
    return tree


def is_scalar(tree: pp.Expr) -> bool:
    """Whether an expression gives a number, and not a value for each series."""
    tree = _unwrapped(tree)
    if isinstance(tree, pp.UnaryExpr):
        return is_scalar(tree.expr)
    if isinstance(tree, pp.BinaryExpr):
        return is_scalar(tree.lhs) and is_scalar(tree.rhs)
    if isinstance(tree, pp.Call):
        return bool(tree.func.name in {"time", "scalar"})
    return isinstance(tree, pp.NumberLiteral)


def _may_raise(tree: pp.Expr) -> bool:
    """Whether evaluating an expression might raise: not that of series, or of series above some number."""
    tree = _unwrapped(tree)
    if isinstance(tree, pp.BinaryExpr):
        sides = (tree.lhs, tree.rhs)
        if str(tree.op) in SET_OPERATORS:
            return any(map(_may_raise, sides))
        vectors = [side for side in sides if not isinstance(_unwrapped(side), pp.NumberLiteral)]
        compares = str(tree.op) in COMPARISONS and not (tree.modifier and tree.modifier.return_bool)
        return not compares or len(vectors) > 1 or any(map(_may_raise, vectors))
    return not isinstance(tree, pp.VectorSelector)


class _Compiler:
    def __init__(self) -> None:
        self.selectors: list[InstantSelector | RangeSelector] = []

    def as_vector(self, tree: pp.Expr) -> VectorNode:
        return vector_of(self.scalar(tree)) if is_scalar(tree) else self.vector(tree)

    def scalar(self, tree: pp.Expr) -> ScalarNode:
        tree = _unwrapped(tree)
        if isinstance(tree, pp.NumberLiteral):
            return _number(tree.val)
        if isinstance(tree, pp.UnaryExpr):
            argument = self.scalar(tree.expr)
            return lambda at: -argument(at)
        if isinstance(tree, pp.BinaryExpr):
            return scalar_binary(str(tree.op), self.scalar(tree.lhs), self.scalar(tree.rhs))
        if isinstance(tree, pp.Call) and tree.args:
            return scalar_of(self.vector(tree.args[0]))
        # `time()`, in seconds.
        return lambda at: at.time_ms / 1000

    def vector(self, tree: pp.Expr) -> VectorNode:
        tree = _unwrapped(tree)
        if isinstance(tree, pp.VectorSelector):
            return self._instant(tree)
        if isinstance(tree, pp.AggregateExpr):
            return self._aggregation(tree)
        if isinstance(tree, pp.UnaryExpr):
            return functions.elementwise("neg", self.vector(tree.expr), [])
        if isinstance(tree, pp.BinaryExpr):
            return self._binary(tree)
        if isinstance(tree, pp.Call):
            return self._call(tree)
        raise NotImplementedError(f"an expression of the kind {type(tree).__name__} is not supported")

    def _call(self, tree: pp.Call) -> VectorNode:
        name, args = tree.func.name, tree.args
        if name in range_vectors.FUNCTIONS:
            parameter = self.scalar(args[0]) if name == "quantile_over_time" else None
            return range_vectors.over_range(name, self._range(args[-1]), parameter)
        if name in functions.ELEMENTWISE:
            parameters = [self.scalar(argument) for argument in args[1:]]
            if name == "round" and not parameters:
                parameters = [_number(1.0)]
            return functions.elementwise(name, self.vector(args[0]), parameters)
        if name in _LABEL_FUNCTIONS:
            return self._relabelled(name, self.vector(args[0]), [_literal(argument) for argument in args[1:]])
        if name in _NO_EFFECT:
            return self.vector(args[0])
        return self._special(name, args[0])

    def _special(self, name: str, argument: pp.Expr) -> VectorNode:
        if name == "vector":
            return vector_of(self.scalar(argument))
        if name == "timestamp":
            return functions.timestamp(self.vector(argument))
        if name == "absent_over_time":
            return functions.absent_over_time(self._range(argument))
        if name == "absent":
            node = self.vector(argument)
            # As in Prometheus, a selector in parentheses gives no labels.
            selected = _selection(argument).matchers if isinstance(argument, pp.VectorSelector) else ()
            return functions.absent(node, selected)
        raise NotImplementedError(f"the function {name} is not supported")

    def _relabelled(self, name: str, argument: VectorNode, texts: list[str]) -> VectorNode:
        if name == "label_replace":
            return functions.relabelled(argument, functions.label_replace(*texts))
        return functions.relabelled(argument, functions.label_join(texts[0], texts[1], texts[2:]))

    def _aggregation(self, tree: pp.AggregateExpr) -> VectorNode:
        name = str(tree.op)
        labels = frozenset(tree.modifier.labels) if tree.modifier else frozenset[str]()
        without = tree.modifier is not None and tree.modifier.type == pp.AggModifierType.Without
        grouping = aggregations.Grouping(labels, without)
        argument = self.vector(tree.expr)
        parameter = None if tree.param is None else self.scalar(tree.param)
        if name in {"topk", "bottomk"} and parameter is not None:
            return aggregations.top_or_bottom(name, argument, grouping, parameter)
        return aggregations.aggregation(name, argument, grouping, parameter)

    def _binary(self, tree: pp.BinaryExpr) -> VectorNode:
        operator = str(tree.op)
        as_bool = tree.modifier is not None and tree.modifier.return_bool
        if is_scalar(tree.lhs):
            left, right = self.scalar(tree.lhs), self.vector(tree.rhs)
            return vector_scalar(operator, right, left, swapped=True, as_bool=as_bool)
        if is_scalar(tree.rhs):
            vector, number = self.vector(tree.lhs), self.scalar(tree.rhs)
            return vector_scalar(operator, vector, number, swapped=False, as_bool=as_bool)
        sides = (self.vector(tree.lhs), self.vector(tree.rhs))
        if operator in SET_OPERATORS:
            raises = _may_raise(tree.rhs)
            return set_operator(operator, *sides, _matching(tree.modifier), right_raises=raises)
        return vector_binary(operator, *sides, _matching(tree.modifier), as_bool=as_bool)

    def _instant(self, tree: pp.VectorSelector) -> InstantSelector:
        selector = InstantSelector(_selection(tree), _ms(tree.offset))
        self.selectors.append(selector)
        return selector

    def _range(self, tree: pp.Expr) -> RangeSelector:
        tree = _unwrapped(tree)
        if not isinstance(tree, pp.MatrixSelector):
            raise NotImplementedError("a range must be that of a selector")
        inner = tree.vector_selector
        selector = RangeSelector(_selection(inner), _ms(tree.range), _ms(inner.offset))
        self.selectors.append(selector)
        return selector


def _number(value: float) -> ScalarNode:
    return lambda _: value


def _literal(tree: pp.Expr) -> str:
    tree = _unwrapped(tree)
    if not isinstance(tree, pp.StringLiteral):
        raise NotImplementedError("the arguments of a label function must be texts in quotes")
    return tree.val


def _selection(tree: pp.VectorSelector) -> MatcherSet:
    if tree.at is not None or tree.matchers.or_matchers:
        raise NotImplementedError("a selector with @ or `or` is not supported")
    matchers = [Matcher(m.name, _operator(m.op), m.value) for m in tree.matchers.matchers]
    if tree.name:
        matchers.insert(0, Matcher(METRIC_NAME_LABEL, "=", tree.name))
    return MatcherSet(matchers)


def _operator(of_parser: pp.MatchOp) -> str:
    return next(text for operator, text in _OPERATORS if operator == of_parser)


def _matching(modifier: pp.BinModifier | None) -> VectorMatching:
    if modifier is None:
        return VectorMatching()
    many = next((side for card, side in _MANY_SIDES if card == modifier.card), "")
    if modifier.matching is None:
        return VectorMatching(many=many, include=tuple(modifier.group_labels or ()))
    return VectorMatching(
        labels=frozenset(modifier.matching.labels),
        on=modifier.matching.type == pp.LabelModifierType.Include,
        many=many,
        include=tuple(modifier.group_labels or ()),
    )
