"""A network without those rows of tokens that its output does not depend on."""

from dosimeter.engine.heads import Columns, Heads
from dosimeter.engine.nodes import Node, Rows
from dosimeter.engine.projection import Projection
from dosimeter.engine.views import Values


def pruned(values: Values, output: int) -> list[Node]:
    """The nodes that the output depends on, in the order in which they run."""
    return _ordered(_Pruned(values, output).nodes, output)


class _Pruned:
    """Nodes without those rows of tokens that nothing depends on: `Rows` moves up as far as it can."""

    def __init__(self, values: Values, output: int) -> None:
        self.nodes, self._shapes = list(values.nodes), values.shapes
        self._memory, self._output = values.memory, output
        while any(self._up(node) for node in self.nodes if type(node) is Rows):
            pass

    def _users(self, value: int) -> list[Node]:
        return [node for node in self.nodes if value in node.inputs]

    def _up(self, rows: Rows) -> bool:
        """Have the node above work on these rows alone, if nobody else asks for the others."""
        value = rows.inputs[0]
        above = next((node for node in self.nodes if node.output == value), None)
        if above is None or value == self._output or self._users(value) != [rows] or len(self._shapes[value]) != 2:
            return False
        if isinstance(above, Heads):
            if not self._own_queries(above):
                return False
            query = above.places[0]
            new = self._rows(query.value, rows)
            above.places[0] = Columns(new, query.first)
            above.inputs = list(dict.fromkeys(place.value for place in above.places))
        elif above.pointwise and all(len(self._shapes[i]) == 2 for i in above.inputs):
            above.inputs = [self._rows(i, rows) for i in above.inputs]
        else:
            return False
        self.nodes.remove(rows)
        above.output = rows.output
        return True

    def _rows(self, value: int, like: Rows) -> int:
        """The same rows of another value."""
        for node in self.nodes:
            if type(node) is Rows and node.inputs == [value] and (node.first, node.count) == (like.first, like.count):
                return node.output
        self._shapes.append((like.count, self._shapes[value][1]))
        self.nodes.append(Rows([value], len(self._shapes) - 1, self._memory, like.first, like.count))
        return len(self._shapes) - 1

    def _own_queries(self, attention: Heads) -> bool:
        """Whether queries are a value of their own; cut off from the layer that gives keys and values with them."""
        query, key, value = attention.places
        if query.value not in (key.value, value.value):
            return True
        above = next((node for node in self.nodes if node.output == query.value), None)
        end = attention.heads * attention.wide[0]
        together = key.value == value.value == query.value and query.first == 0 and min(key.first, value.first) >= end
        if not isinstance(above, Projection) or not together or self._users(query.value) != [attention]:
            return False
        count, width = self._shapes[above.output]
        self._shapes += [(count, end), (count, width - end)]
        new = len(self._shapes) - 2
        rest = above.split(end, new + 1)
        above.output = new
        self.nodes.append(rest)
        moved = [Columns(new + 1, place.first - end) for place in (key, value)]
        attention.places = [Columns(new, 0), *moved]
        attention.inputs = [new, new + 1]
        return True


def _ordered(nodes: list[Node], output: int) -> list[Node]:
    """Those that the output depends on, each after all that it takes from."""
    makers = {node.output: node for node in nodes}
    done: list[Node] = []
    seen = {0}

    def visit(value: int) -> None:
        if value not in seen:
            seen.add(value)
            node = makers[value]
            for each in node.inputs:
                visit(each)
            done.append(node)

    visit(output)
    return done
