//! Evaluation of a parsed expression, with the errors and the costs of `cel-go`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use regex::Regex;

use super::check::TYPE_NAMES;
use super::fold::{Fold, steps};
use super::operators::{binary, lookup, overflow};
use super::pattern;
use super::syntax::{Element, Entry, Expr, Macro, MacroKind};
use super::value::{Key, Map, Value};

/// `resource.k8s.io/v1.CELSelectorExpressionMaxCost`.
pub(super) const COST_MAX: u64 = 1_000_000;

/// Costs of upstream's model.
pub(super) const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// `&&`, `||` and the macros for quantifiers may absorb it.
    Error(Cow<'static, str>),
    /// Ends the evaluation.
    TooExpensive,
}

impl Failure {
    pub fn error(message: impl Into<Cow<'static, str>>) -> Failure {
        Failure::Error(message.into())
    }

    pub fn no_such_overload() -> Failure {
        Failure::error("no such overload")
    }
}

/// What an evaluation has used up, apart from its variables.
#[derive(Debug, Default)]
pub(super) struct Run {
    cost: u64,
    patterns: HashMap<Arc<str>, Regex>,
}

impl Run {
    pub fn cost(&self) -> u64 {
        self.cost
    }

    pub fn charge(&mut self, cost: u64) -> Result<(), Failure> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > COST_MAX { Err(Failure::TooExpensive) } else { Ok(()) }
    }

    /// Charges a pass over this many characters.
    pub fn charge_pass(&mut self, size: u64) -> Result<(), Failure> {
        self.charge(size.div_ceil(10))
    }

    /// Returns the compiled pattern. Charges for a search in a text of this size.
    pub fn pattern(&mut self, pattern: &Arc<str>, text_size: u64) -> Result<&Regex, Failure> {
        let pattern_size = pattern.chars().count() as u64;
        self.charge((text_size + 1).div_ceil(10).saturating_mul(pattern_size.div_ceil(4)))?;
        if !self.patterns.contains_key(pattern) {
            if self.patterns.len() == pattern::COUNT_MAX {
                return Err(Failure::TooExpensive);
            }
            let compiled = pattern::compile(pattern).map_err(Failure::error)?;
            self.patterns.insert(pattern.clone(), compiled);
        }
        Ok(&self.patterns[pattern])
    }
}

type Outcome = Result<Value, Failure>;

/// An evaluation of one expression for one device.
pub(super) struct Evaluation {
    device: Value,
    /// Variables of macros, innermost last.
    variables: Vec<(Arc<str>, Value)>,
    pub run: Run,
}

impl Evaluation {
    pub fn new(device: Value) -> Evaluation {
        Evaluation { device, variables: Vec::new(), run: Run::default() }
    }

    /// Recurses as deep as the expression, which the parser limits.
    pub fn value(&mut self, expr: &Expr) -> Outcome {
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Name(name) => self.name(name),
            Expr::Select { operand, field, optional } => {
                let operand = self.container(operand)?;
                self.run.charge(1)?;
                lookup(&operand, &Value::Text(field.clone()), *optional)
            }
            Expr::Has { operand, field } => {
                let operand = self.container(operand)?;
                let found = lookup(&operand, &Value::Text(field.clone()), true)?;
                Ok(Value::Bool(matches!(found, Value::Optional(Some(_)))))
            }
            Expr::Index { operand, index, optional } => {
                let operand = self.container(operand)?;
                let index = self.value(index)?;
                self.run.charge(1)?;
                lookup(&operand, &index, *optional)
            }
            Expr::List(elements) => self.list(elements),
            Expr::Map(entries) => self.map(entries),
            Expr::Not(operand) => {
                let operand = self.bool(operand)?;
                self.run.charge(1)?;
                Ok(Value::Bool(!operand))
            }
            Expr::Negate(operand) => {
                let operand = self.value(operand)?;
                self.run.charge(1)?;
                match operand {
                    Value::Int(value) => value.checked_neg().map(Value::Int).ok_or_else(overflow),
                    Value::Double(value) => Ok(Value::Double(-value)),
                    _ => Err(Failure::no_such_overload()),
                }
            }
            Expr::Binary(operator, operands) => {
                let left = self.value(&operands[0])?;
                let right = self.value(&operands[1])?;
                binary(*operator, &left, &right, &mut self.run)
            }
            Expr::And(terms) => self.terms(terms, false),
            Expr::Or(terms) => self.terms(terms, true),
            Expr::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let branch = if self.bool(condition)? { then } else { otherwise };
                self.value(branch)
            }
            Expr::Call(function, arguments) => {
                let arguments: Vec<Value> =
                    arguments.iter().map(|argument| self.value(argument)).collect::<Result<_, _>>()?;
                (function.call)(&arguments, &mut self.run)
            }
            Expr::Alternative { value, arguments } => match self.value(&arguments[0])? {
                Value::Optional(None) => self.value(&arguments[1]),
                Value::Optional(Some(found)) if *value => Ok((*found).clone()),
                found @ Value::Optional(Some(_)) => Ok(found),
                _ => Err(Failure::no_such_overload()),
            },
            Expr::Macro(macro_expr) => self.expand(macro_expr),
        }
    }

    fn name(&mut self, name: &Arc<str>) -> Outcome {
        self.run.charge(1)?;
        if let Some((_, value)) = self.variables.iter().rev().find(|(variable, _)| variable == name) {
            return Ok(value.clone());
        }
        if &**name == "device" {
            return Ok(self.device.clone());
        }
        match TYPE_NAMES.into_iter().find(|type_name| **type_name == **name) {
            Some(type_name) => Ok(Value::Type(type_name)),
            None => Err(Failure::error(format!("no such attribute(s): {name}"))),
        }
    }

    /// What is selected from: a chain of selections costs one more if it does not begin with a name.
    fn container(&mut self, operand: &Expr) -> Outcome {
        let value = self.value(operand)?;
        if !matches!(operand, Expr::Name(_) | Expr::Select { .. } | Expr::Index { .. }) {
            self.run.charge(1)?;
        }
        Ok(value)
    }

    fn bool(&mut self, expr: &Expr) -> Result<bool, Failure> {
        match self.value(expr)? {
            Value::Bool(value) => Ok(value),
            _ => Err(Failure::no_such_overload()),
        }
    }

    /// A term of the value `decisive` decides, whatever errors the others have.
    fn terms(&mut self, terms: &[Expr], decisive: bool) -> Outcome {
        let mut failed = None;
        for term in terms {
            match self.bool(term) {
                Ok(value) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(Failure::TooExpensive) => return Err(Failure::TooExpensive),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn list(&mut self, elements: &[Element]) -> Outcome {
        self.run.charge(LIST_COST)?;
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            let value = self.value(&element.value)?;
            match (element.optional, value) {
                (false, value) => values.push(value),
                (true, Value::Optional(value)) => values.extend(value.map(|value| (*value).clone())),
                (true, _) => {
                    return Err(Failure::error(
                        "cannot initialize optional list element from non-optional value",
                    ));
                }
            }
        }
        Ok(Value::List(values.into()))
    }

    fn map(&mut self, entries: &[Entry]) -> Outcome {
        self.run.charge(MAP_COST)?;
        let mut map = BTreeMap::new();
        for entry in entries {
            let key = Key::from_value(&self.value(&entry.key)?)?;
            let value = match (entry.optional, self.value(&entry.value)?) {
                (false, value) => value,
                (true, Value::Optional(Some(value))) => (*value).clone(),
                (true, Value::Optional(None)) => continue,
                (true, _) => {
                    return Err(Failure::error("cannot initialize optional entry from non-optional value"));
                }
            };
            // The last of equal keys wins.
            map.insert(key, value);
        }
        Ok(Value::Map(Arc::new(Map::new(map))))
    }

    fn expand(&mut self, macro_expr: &Macro) -> Outcome {
        match macro_expr.kind {
            MacroKind::Bind => {
                let value = self.value(&macro_expr.range)?;
                self.with(&macro_expr.variable, value, &macro_expr.body)
            }
            MacroKind::OptMap | MacroKind::OptFlatMap => {
                let Value::Optional(optional) = self.value(&macro_expr.range)? else {
                    return Err(Failure::no_such_overload());
                };
                self.run.charge(1)?;
                let Some(value) = optional else {
                    return Ok(Value::Optional(None));
                };
                self.run.charge(2)?;
                let result = self.with(&macro_expr.variable, (*value).clone(), &macro_expr.body)?;
                let flat = macro_expr.kind == MacroKind::OptFlatMap;
                Ok(if flat { result } else { Value::Optional(Some(Arc::new(result))) })
            }
            _ => {
                let range = self.value(&macro_expr.range)?;
                let outer = self.variables.len();
                let result = self.iterate(macro_expr, &range);
                self.variables.truncate(outer);
                result
            }
        }
    }

    fn with(&mut self, variable: &Arc<str>, value: Value, body: &Expr) -> Outcome {
        self.variables.push((variable.clone(), value));
        let result = self.value(body);
        self.variables.pop();
        result
    }

    fn iterate(&mut self, macro_expr: &Macro, range: &Value) -> Outcome {
        let steps: Vec<(Value, Option<Value>)> = steps(range, macro_expr.second_variable.is_some())?;
        let mut fold = Fold::new(macro_expr.kind);
        let outer = self.variables.len();
        for (first, second) in steps {
            if fold.is_decided() {
                break;
            }
            self.run.charge(fold.step_cost())?;
            self.variables.truncate(outer);
            self.variables.push((macro_expr.variable.clone(), first.clone()));
            if let (Some(variable), Some(value)) = (&macro_expr.second_variable, second) {
                self.variables.push((variable.clone(), value));
            }
            if let Some(filter) = &macro_expr.filter
                && !self.bool(filter)?
            {
                continue;
            }
            let value = if fold.absorbs_errors() {
                match self.bool(&macro_expr.body) {
                    Err(Failure::Error(message)) => {
                        fold.fail(Failure::Error(message));
                        continue;
                    }
                    value => Value::Bool(value?),
                }
            } else {
                self.value(&macro_expr.body)?
            };
            fold.add(first, value, &mut self.run)?;
        }
        self.run.charge(1)?;
        fold.finish(range, &mut self.run)
    }
}
