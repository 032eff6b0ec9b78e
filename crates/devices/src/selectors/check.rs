//! Checks of a parsed expression that need no device: names, arguments of functions, constant patterns, and types as far
//! as the expression alone tells them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::functions::{Function, Overload};
use super::pattern;
use super::syntax::{Expr, Macro, MacroKind, Operator};
use super::value::Value;

/// A type that is known only when the expression is evaluated, such as that of an attribute.
pub(super) const DYN: &str = "dyn";

/// Types that are values of an expression, too.
pub(super) const TYPE_NAMES: [&str; 10] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];

const OPTIONAL: &str = "optional_type";

/// Types that only `device` and its parts have.
const DEVICE: &str = "kubernetes.DRADevice";
const ATTRIBUTES: &str = "map(string, map(string, any))";
const ATTRIBUTES_OF_DOMAIN: &str = "map(string, any)";
const CAPACITY: &str = "map(string, map(string, kubernetes.Quantity))";
const CAPACITY_OF_DOMAIN: &str = "map(string, kubernetes.Quantity)";

/// Fields of `device` with their types.
const DEVICE_FIELDS: [(&str, &str); 4] = [
    ("driver", "string"),
    ("attributes", ATTRIBUTES),
    ("capacity", CAPACITY),
    ("allowMultipleAllocations", "bool"),
];

type Kind = &'static str;

/// Checks a selector; an error says what is wrong.
pub(super) fn check(expr: &Expr) -> Result<(), String> {
    match (Checker { scope: Vec::new(), patterns: BTreeSet::new() }).kind(expr)? {
        "bool" | DYN => Ok(()),
        other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}

struct Checker {
    /// Variables of macros with their types, innermost last.
    scope: Vec<(Arc<str>, Kind)>,
    /// Constant patterns.
    patterns: BTreeSet<Arc<str>>,
}

impl Checker {
    /// Returns the type of the value. Recurses as deep as the expression, which the parser limits.
    fn kind(&mut self, expr: &Expr) -> Result<Kind, String> {
        Ok(match expr {
            Expr::Literal(value) => value.type_name(),
            Expr::Name(name) => self.name(name)?,
            Expr::Select { operand, field, optional } => {
                let found = select(self.kind(operand)?, field)?;
                if *optional { OPTIONAL } else { found }
            }
            Expr::Has { operand, field } => {
                select(self.kind(operand)?, field)?;
                "bool"
            }
            Expr::Index { operand, index, optional } => {
                let (operand, index) = (self.kind(operand)?, self.kind(index)?);
                let found = element(operand, index).ok_or_else(|| no_overload("_[_]", &[operand, index]))?;
                if *optional { OPTIONAL } else { found }
            }
            Expr::List(elements) => {
                self.same(elements.iter().filter(|element| !element.optional).map(|element| &element.value))?;
                for element in elements.iter().filter(|element| element.optional) {
                    self.optional(&element.value)?;
                }
                "list"
            }
            Expr::Map(entries) => {
                self.same(entries.iter().map(|entry| &entry.key))?;
                self.same(entries.iter().filter(|entry| !entry.optional).map(|entry| &entry.value))?;
                for entry in entries.iter().filter(|entry| entry.optional) {
                    self.optional(&entry.value)?;
                }
                "map"
            }
            Expr::Not(operand) => self.bool("!_", operand)?,
            Expr::Negate(operand) => match self.kind(operand)? {
                found @ ("int" | "double" | DYN) => found,
                found => return Err(no_overload("-_", &[found])),
            },
            Expr::Binary(operator, operands) => {
                let (left, right) = (self.kind(&operands[0])?, self.kind(&operands[1])?);
                binary(*operator, left, right).ok_or_else(|| no_overload(operator.name(), &[left, right]))?
            }
            Expr::And(terms) => self.all_bool("_&&_", terms)?,
            Expr::Or(terms) => self.all_bool("_||_", terms)?,
            Expr::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                self.bool("_?_:_", condition)?;
                match (self.kind(then)?, self.kind(otherwise)?) {
                    (DYN, _) | (_, DYN) => DYN,
                    (a, b) if base(a) == base(b) => a,
                    (a, b) => return Err(no_overload("_?_:_", &["bool", a, b])),
                }
            }
            Expr::Call(function, arguments) => self.call(function, arguments)?,
            Expr::Alternative { value, arguments } => {
                let (optional, alternative) = (self.kind(&arguments[0])?, self.kind(&arguments[1])?);
                let fits = *value || matches!(alternative, OPTIONAL | DYN);
                if !fits || !matches!(optional, OPTIONAL | DYN) {
                    return Err(no_overload(if *value { "orValue" } else { "or" }, &[optional, alternative]));
                }
                if *value { DYN } else { OPTIONAL }
            }
            Expr::Macro(macro_expr) => self.expand(macro_expr)?,
        })
    }

    fn name(&self, name: &Arc<str>) -> Result<Kind, String> {
        if let Some((_, kind)) = self.scope.iter().rev().find(|(variable, _)| variable == name) {
            return Ok(kind);
        }
        match &**name {
            "device" => Ok(DEVICE),
            name if TYPE_NAMES.contains(&name) => Ok("type"),
            name => Err(format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    /// Refuses literals of lists and maps with different types of elements.
    fn same<'a>(&mut self, elements: impl Iterator<Item = &'a Expr>) -> Result<(), String> {
        let mut expected = DYN;
        for element in elements {
            let found = self.kind(element)?;
            if expected != DYN && found != DYN && base(found) != base(expected) {
                return Err(format!("expected type '{expected}' but found '{found}'"));
            }
            if found != DYN {
                expected = found;
            }
        }
        Ok(())
    }

    fn optional(&mut self, expr: &Expr) -> Result<(), String> {
        match self.kind(expr)? {
            OPTIONAL | DYN => Ok(()),
            found => Err(format!("expected type '{OPTIONAL}' but found '{found}'")),
        }
    }

    fn bool(&mut self, function: &str, expr: &Expr) -> Result<Kind, String> {
        match self.kind(expr)? {
            "bool" | DYN => Ok("bool"),
            found => Err(no_overload(function, &[found])),
        }
    }

    fn all_bool(&mut self, function: &str, terms: &[Expr]) -> Result<Kind, String> {
        for term in terms {
            self.bool(function, term)?;
        }
        Ok("bool")
    }

    fn call(&mut self, function: &Function, arguments: &[Expr]) -> Result<Kind, String> {
        let kinds: Vec<Kind> =
            arguments.iter().map(|argument| self.kind(argument)).collect::<Result<_, _>>()?;
        let mut results = function.overloads.iter().filter(|overload| accepts(overload, &kinds));
        let Some((_, result)) = results.next() else {
            return Err(no_overload(function.name, &kinds));
        };
        if matches!(function.name, "matches" | "find" | "findAll")
            && let Some(Expr::Literal(Value::Text(pattern))) = arguments.get(1)
            && self.patterns.insert(pattern.clone())
        {
            if self.patterns.len() > pattern::COUNT_MAX {
                return Err(format!("more than {} different patterns", pattern::COUNT_MAX));
            }
            pattern::compile(pattern)?;
        }
        Ok(if results.all(|(_, other)| other == result) { result } else { DYN })
    }

    fn expand(&mut self, macro_expr: &Macro) -> Result<Kind, String> {
        let range = self.kind(&macro_expr.range)?;
        let variables = match macro_expr.kind {
            MacroKind::Bind => [range, DYN],
            MacroKind::OptMap | MacroKind::OptFlatMap if matches!(range, OPTIONAL | DYN) => [DYN, DYN],
            MacroKind::OptMap | MacroKind::OptFlatMap => return Err(no_overload("hasValue", &[range])),
            _ => match range {
                ATTRIBUTES => ["string", ATTRIBUTES_OF_DOMAIN],
                CAPACITY => ["string", CAPACITY_OF_DOMAIN],
                ATTRIBUTES_OF_DOMAIN => ["string", DYN],
                CAPACITY_OF_DOMAIN => ["string", "kubernetes.Quantity"],
                "list" | "map" | DYN => [DYN, DYN],
                other => {
                    return Err(format!("expression of type '{other}' cannot be range of a comprehension"));
                }
            },
        };
        let outer = self.scope.len();
        self.scope.push((macro_expr.variable.clone(), variables[0]));
        self.scope.extend(macro_expr.second_variable.clone().map(|variable| (variable, variables[1])));
        if let Some(filter) = &macro_expr.filter {
            self.bool("_?_:_", filter)?;
        }
        let body = match macro_expr.kind {
            MacroKind::All => self.bool("_&&_", &macro_expr.body)?,
            MacroKind::Exists => self.bool("_||_", &macro_expr.body)?,
            MacroKind::ExistsOne | MacroKind::Filter => self.bool("_?_:_", &macro_expr.body)?,
            _ => self.kind(&macro_expr.body)?,
        };
        self.scope.truncate(outer);
        Ok(match macro_expr.kind {
            MacroKind::All | MacroKind::Exists | MacroKind::ExistsOne => "bool",
            MacroKind::Map | MacroKind::Filter | MacroKind::SortBy => "list",
            MacroKind::TransformMap | MacroKind::TransformMapEntry => "map",
            MacroKind::Bind => body,
            MacroKind::OptMap | MacroKind::OptFlatMap => OPTIONAL,
        })
    }
}

/// Returns the type without types of elements.
fn base(kind: Kind) -> Kind {
    if kind.starts_with("map(") { "map" } else { kind }
}

fn select(operand: Kind, field: &str) -> Result<Kind, String> {
    if operand == DEVICE {
        let found = DEVICE_FIELDS.iter().find(|(name, _)| *name == field);
        return found.map(|(_, kind)| *kind).ok_or_else(|| format!("undefined field '{field}'"));
    }
    match element(operand, "string") {
        Some(kind) if operand != "list" => Ok(kind),
        _ => Err(format!("type '{operand}' does not support field selection")),
    }
}

/// Returns the type of what an index finds; `None`: that cannot be.
fn element(operand: Kind, index: Kind) -> Option<Kind> {
    let by_name = matches!(index, "string" | DYN);
    match operand {
        ATTRIBUTES if by_name => Some(ATTRIBUTES_OF_DOMAIN),
        CAPACITY if by_name => Some(CAPACITY_OF_DOMAIN),
        ATTRIBUTES_OF_DOMAIN if by_name => Some(DYN),
        CAPACITY_OF_DOMAIN if by_name => Some("kubernetes.Quantity"),
        "list" if matches!(index, "int" | DYN) => Some(DYN),
        "map" | DYN => Some(DYN),
        OPTIONAL => Some(OPTIONAL),
        _ => None,
    }
}

/// Returns the type of the result; `None`: no overload.
fn binary(operator: Operator, left: Kind, right: Kind) -> Option<Kind> {
    let number = |kind: Kind| matches!(kind, "int" | "uint" | "double");
    let (left, right) = (base(left), base(right));
    let dynamic = left == DYN || right == DYN;
    match operator {
        Operator::Equal | Operator::NotEqual => (dynamic || left == right).then_some("bool"),
        Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
            let ordered =
                |kind| number(kind) || matches!(kind, "bool" | "string" | "bytes" | "null_type" | DYN);
            let comparable = dynamic || left == right || number(left) && number(right);
            (comparable && ordered(left) && ordered(right)).then_some("bool")
        }
        Operator::In => matches!(right, "list" | "map" | DYN).then_some("bool"),
        _ => {
            let supported = |kind| {
                kind == DYN
                    || number(kind) && (operator != Operator::Modulo || kind != "double")
                    || operator == Operator::Add && matches!(kind, "string" | "bytes" | "list")
            };
            if !supported(left) || !supported(right) {
                None
            } else if left == DYN {
                Some(right)
            } else {
                (right == DYN || left == right).then_some(left)
            }
        }
    }
}

/// Whether arguments of these types may be those of the overload.
fn accepts((parameters, _): &Overload, kinds: &[Kind]) -> bool {
    let fits =
        |(parameter, kind): (&Kind, &Kind)| *parameter == DYN || *kind == DYN || *parameter == base(kind);
    parameters.len() == kinds.len() && parameters.iter().zip(kinds).all(fits)
}

fn no_overload(function: &str, kinds: &[Kind]) -> String {
    format!("found no matching overload for '{function}' applied to '({})'", kinds.join(", "))
}
