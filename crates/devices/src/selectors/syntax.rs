//! Parsed expressions.

use std::sync::Arc;

use super::functions::Function;
use super::value::Value;

#[derive(Debug)]
pub(super) enum Expr {
    Literal(Value),
    Name(Arc<str>),
    /// `operand.field`, or `operand.?field`.
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        optional: bool,
    },
    /// `has(operand.field)`.
    Has {
        operand: Box<Expr>,
        field: Arc<str>,
    },
    /// `operand[index]`, or `operand[?index]`.
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Operator, Box<[Expr; 2]>),
    /// Two or more terms: a chain is flat, however long it is.
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Conditional(Box<[Expr; 3]>),
    /// The receiver of a member function is the first argument.
    Call(&'static Function, Vec<Expr>),
    /// `optional.or(optional)` and `optional.orValue(value)`: the alternative is evaluated only if it is needed.
    Alternative {
        value: bool,
        arguments: Box<[Expr; 2]>,
    },
    Macro(Box<Macro>),
}

#[derive(Debug)]
pub(super) struct Element {
    pub value: Expr,
    /// `[?value]`: an optional that adds an element only if it has a value.
    pub optional: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

impl Operator {
    /// The name of its function, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Operator::Add => "_+_",
            Operator::Subtract => "_-_",
            Operator::Multiply => "_*_",
            Operator::Divide => "_/_",
            Operator::Modulo => "_%_",
            Operator::Equal => "_==_",
            Operator::NotEqual => "_!=_",
            Operator::Less => "_<_",
            Operator::LessEqual => "_<=_",
            Operator::Greater => "_>_",
            Operator::GreaterEqual => "_>=_",
            Operator::In => "@in",
        }
    }
}

/// A macro that declares variables.
#[derive(Debug)]
pub(super) struct Macro {
    pub kind: MacroKind,
    /// What it iterates over; the value of the variable for `bind`; the optional for `optMap` and `optFlatMap`.
    pub range: Expr,
    pub variable: Arc<str>,
    /// The variable for the value: `variable` is the index or the key then.
    pub second_variable: Option<Arc<str>>,
    pub filter: Option<Expr>,
    pub body: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MacroKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
    SortBy,
    Bind,
    OptMap,
    OptFlatMap,
}
