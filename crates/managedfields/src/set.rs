//! Sets of fields, as trees: a node is a step of the path, and says whether the field that it leads to
//! is a member. Nodes are sorted, none occurs twice, and each leads to a member.

use std::cmp::Ordering;

use crate::element::Element;

/// A set of fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set<'a> {
    nodes: Vec<Node<'a>>,
}

/// One field, and those below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node<'a> {
    /// The last step of the path.
    pub element: Element<'a>,
    /// Whether the field itself is in the set.
    pub is_member: bool,
    /// The fields below it that are in the set.
    pub children: Set<'a>,
}

impl Node<'_> {
    fn is_needed(&self) -> bool {
        self.is_member || !self.children.is_empty()
    }
}

/// Nodes of two sets that are of the same field.
enum Pair<L, R> {
    Left(L),
    Right(R),
    Both(L, R),
}

impl<'a> Set<'a> {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Set<'a> {
        Set { nodes: Vec::new() }
    }

    /// The set of these fields, each given by its path.
    pub fn of<P>(paths: impl IntoIterator<Item = P>) -> Set<'a>
    where
        P: IntoIterator<Item = Element<'a>, IntoIter: DoubleEndedIterator>,
    {
        let mut set = Set::new();
        for path in paths {
            let one = path.into_iter().rev().fold(None, |below: Option<Set<'a>>, element| {
                let is_member = below.is_none();
                let children = below.unwrap_or_default();
                Some(Set { nodes: vec![Node { element, is_member, children }] })
            });
            set = set.union(one.unwrap_or_default());
        }
        set
    }

    /// The set of the fields at these dotted paths, none of which leads through a list.
    pub fn of_fields(paths: &[&'a str]) -> Set<'a> {
        Set::of(paths.iter().map(|path| path.split('.').map(Element::field).collect::<Vec<_>>()))
    }

    /// The set of these nodes; those that lead to no member are left out.
    pub(crate) fn from_nodes(mut nodes: Vec<Node<'a>>) -> Set<'a> {
        nodes.retain(Node::is_needed);
        if !nodes.is_sorted_by(|a, b| a.element < b.element) {
            nodes.sort_by(|a, b| a.element.cmp(&b.element));
            nodes.dedup_by(|next, first| {
                let same = next.element == first.element;
                if same {
                    first.is_member |= next.is_member;
                    let children = std::mem::take(&mut next.children);
                    first.children = std::mem::take(&mut first.children).union(children);
                }
                same
            });
        }
        Set { nodes }
    }

    /// Whether no field is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many fields are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|node| usize::from(node.is_member) + node.children.len()).sum()
    }

    /// The nodes, sorted.
    #[must_use]
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    pub(crate) fn nodes_mut(&mut self) -> &mut [Node<'a>] {
        &mut self.nodes
    }

    /// The node of a field.
    #[must_use]
    pub fn node(&self, element: &Element<'_>) -> Option<&Node<'a>> {
        // Lifetimes shrink to the shorter one, which `cmp` of the derived order needs.
        let nodes: &[Node<'_>] = &self.nodes;
        let at = nodes.binary_search_by(|node| compare(&node.element, element)).ok()?;
        self.nodes.get(at)
    }

    /// Whether the field at this path is in it.
    #[must_use]
    pub fn has(&self, path: &[Element<'_>]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.is_member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.children.has(rest)),
        }
    }

    /// The fields of either.
    #[must_use]
    pub fn union(self, other: Set<'a>) -> Set<'a> {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        zip(
            self.nodes,
            other.nodes,
            |node| &node.element,
            |node| &node.element,
            |pair| {
                nodes.push(match pair {
                    Pair::Left(node) | Pair::Right(node) => node,
                    Pair::Both(left, right) => Node {
                        element: left.element,
                        is_member: left.is_member || right.is_member,
                        children: left.children.union(right.children),
                    },
                });
            },
        );
        Set { nodes }
    }

    /// The fields of both.
    #[must_use]
    pub fn intersection(&self, other: &Set<'_>) -> Set<'a> {
        let mut nodes = Vec::new();
        zip(
            &self.nodes,
            &other.nodes,
            |node| &node.element,
            |node| &node.element,
            |pair| {
                if let Pair::Both(left, right) = pair {
                    let both = Node {
                        element: left.element.clone(),
                        is_member: left.is_member && right.is_member,
                        children: left.children.intersection(&right.children),
                    };
                    nodes.extend(Some(both).filter(Node::is_needed));
                }
            },
        );
        Set { nodes }
    }

    /// The fields that are not in the other set. One that is there does not take those below it along.
    #[must_use]
    pub fn difference(self, other: &Set<'_>) -> Set<'a> {
        self.keep(other, |left, right| {
            Some(Node {
                element: left.element,
                is_member: left.is_member && !right.is_member,
                children: left.children.difference(&right.children),
            })
        })
    }

    /// The fields that are not in the other set, and not below one that is there.
    #[must_use]
    pub fn recursive_difference(self, other: &Set<'_>) -> Set<'a> {
        self.keep(other, |left, right| {
            (!right.is_member).then(|| Node {
                element: left.element,
                is_member: left.is_member,
                children: left.children.recursive_difference(&right.children),
            })
        })
    }

    /// The nodes that the other set has not, and what `rest` leaves of the others.
    fn keep(
        self,
        other: &Set<'_>,
        rest: impl Fn(Node<'a>, &Node<'_>) -> Option<Node<'a>>,
    ) -> Set<'a> {
        if other.is_empty() {
            return self;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        zip(
            self.nodes,
            &other.nodes,
            |node| &node.element,
            |node| &node.element,
            |pair| match pair {
                Pair::Left(left) => nodes.push(left),
                Pair::Both(left, right) => nodes.extend(rest(left, right).filter(Node::is_needed)),
                Pair::Right(_) => {}
            },
        );
        Set { nodes }
    }

    /// The paths of the fields in it; at each level the fields themselves come before those below.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<Element<'a>>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut Vec<Element<'a>>, paths: &mut Vec<Vec<Element<'a>>>) {
        for node in self.nodes.iter().filter(|node| node.is_member) {
            let mut path = prefix.clone();
            path.push(node.element.clone());
            paths.push(path);
        }
        for node in &self.nodes {
            prefix.push(node.element.clone());
            node.children.collect(prefix, paths);
            prefix.pop();
        }
    }

    /// The same without borrowed texts.
    #[must_use]
    pub fn into_owned(self) -> Set<'static> {
        let owned = |node: Node<'_>| Node {
            element: node.element.into_owned(),
            is_member: node.is_member,
            children: node.children.into_owned(),
        };
        Set { nodes: self.nodes.into_iter().map(owned).collect() }
    }
}

fn compare(left: &Element<'_>, right: &Element<'_>) -> Ordering {
    left.cmp(right)
}

/// Goes through two sorted lists side by side.
fn zip<L, R>(
    left: impl IntoIterator<Item = L>,
    right: impl IntoIterator<Item = R>,
    left_element: impl for<'x> Fn(&'x L) -> &'x Element<'x>,
    right_element: impl for<'x> Fn(&'x R) -> &'x Element<'x>,
    mut visit: impl FnMut(Pair<L, R>),
) {
    let mut left = left.into_iter().peekable();
    let mut right = right.into_iter().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(l), Some(r)) => left_element(l).cmp(right_element(r)),
        };
        let l = if order.is_le() { left.next() } else { None };
        let r = if order.is_ge() { right.next() } else { None };
        match (l, r) {
            (Some(l), Some(r)) => visit(Pair::Both(l, r)),
            (Some(l), None) => visit(Pair::Left(l)),
            (None, Some(r)) => visit(Pair::Right(r)),
            (None, None) => return,
        }
    }
}
