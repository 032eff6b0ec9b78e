//! Device selectors: expressions in CEL that say whether a device will do.
//!
//! Evaluates them as upstream does (`k8s.io/dynamic-resource-allocation/cel`, with `cel-go` and the libraries that the
//! API server enables), without I/O and without a clock. The data file `tests/data/selectors.txt` has upstream's verdict
//! and cost for several hundred expressions; a test compares.
//!
//! Neither the length nor the nesting of an expression can exhaust the stack, and no expression costs more than
//! upstream's limit: every pass over a text or a list, and every new element, is charged before it is made.
//!
//! What differs from upstream:
//! * Types are checked as far as the expression alone tells them, without types of elements, and constants are not
//!   evaluated ahead of time. So an expression that upstream refuses may have a value here, or fail only when it is
//!   evaluated; the API server never stores it.
//! * There are no timestamps, durations, URLs, messages, `string.format()`, and no named formats
//!   (`format.dns1123Label()`): such an expression is a compile error. Names of types such as `kubernetes.Quantity` are
//!   no expressions. Keys of maps are strings, integers and bools.
//! * Costs follow upstream's model, but lists are charged for what `+` copies and `==` compares, and texts for the
//!   result of `replace`. An evaluation may compile 32 different patterns, each of up to a mebibyte.
//! * Patterns have the syntax of the `regex` crate, with the meaning that they have for Go: repetitions such as `a**`
//!   are accepted, the same name for two groups is not.
//! * Maps are iterated in the order of their keys; upstream's order is random.
//! * `quantity("2") == quantity("1").add(1)` is true; upstream fails for a sum on the right side.
//! * Quantities beyond `i64::MAX` units count as that many (see [`berth_model::Quantity`]), and `quantity("1000m")` is an
//!   integer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::{Attribute, DeviceTraits};

mod calls;
mod check;
mod eval;
mod fold;
mod functions;
mod lexer;
mod operators;
mod parser;
mod pattern;
mod syntax;
#[cfg(test)]
mod tests;
mod value;

use eval::{Evaluation, Failure};
use syntax::Expr;
use value::{Key, Map, Value};

/// `resource.k8s.io/v1.CELSelectorExpressionMaxLength`, in bytes.
const EXPRESSION_LEN_MAX: usize = 10 * 1024;

/// Compiled expressions, shared by all devices.
const COMPILED_MAX: usize = 1024;

/// Answers of one model of device.
const ANSWERS_MAX: usize = 1024;

/// Why it is unknown whether a selector selects a device: such a device does not serve, until the selector or the driver is
/// corrected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CelError {
    /// The expression is invalid for all devices.
    #[error("CEL compile error: {0}")]
    Compile(Arc<str>),
    /// The expression has no value for this device, or takes too long.
    #[error("CEL runtime error: {0}")]
    Runtime(Arc<str>),
}

/// Compiled selectors, shared by clones.
#[derive(Clone, Default)]
pub struct Selectors {
    compiled: Arc<RwLock<HashMap<Arc<str>, Compiled>>>,
}

type Compiled = Result<Arc<Expr>, CelError>;

impl Selectors {
    /// Returns whether the device with these traits, of this driver, satisfies the expression.
    pub fn matches(&self, expression: &str, driver: &str, traits: &DeviceTraits) -> Result<bool, CelError> {
        let compiled = self.compiled(expression)?;
        evaluate(&compiled, driver, traits).0
    }

    fn compiled(&self, expression: &str) -> Compiled {
        if let Some(compiled) = self.compiled.read().get(expression) {
            return compiled.clone();
        }
        if expression.len() > EXPRESSION_LEN_MAX {
            let message =
                format!("expression of {} bytes is longer than {EXPRESSION_LEN_MAX}", expression.len());
            return Err(CelError::Compile(message.into()));
        }
        let compiled = compile(expression);
        let mut all = self.compiled.write();
        if all.len() >= COMPILED_MAX {
            all.clear();
        }
        all.insert(expression.into(), compiled.clone());
        compiled
    }
}

impl fmt::Debug for Selectors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Selectors").field("compiled", &self.compiled.read().len()).finish()
    }
}

/// The traits of a driver's device with the remembered answers of selectors: devices of one model share it.
#[derive(Debug)]
pub struct Model {
    driver: Arc<str>,
    traits: DeviceTraits,
    selectors: Selectors,
    answers: Mutex<HashMap<Arc<str>, Result<bool, CelError>>>,
}

impl Model {
    pub fn new(driver: Arc<str>, traits: DeviceTraits, selectors: Selectors) -> Model {
        Model { driver, traits, selectors, answers: Mutex::default() }
    }

    pub fn driver(&self) -> &Arc<str> {
        &self.driver
    }

    pub fn traits(&self) -> &DeviceTraits {
        &self.traits
    }

    /// Returns whether the devices of this model satisfy the expression. Each expression is evaluated once for a model,
    /// unless callers race or the answers became too many.
    pub fn matches(&self, expression: &Arc<str>) -> Result<bool, CelError> {
        if let Some(answer) = self.answers.lock().get(expression) {
            return answer.clone();
        }
        let answer = self.selectors.matches(expression, &self.driver, &self.traits);
        // A longer one is refused at once: it is not worth the memory.
        if expression.len() <= EXPRESSION_LEN_MAX {
            let mut answers = self.answers.lock();
            if answers.len() >= ANSWERS_MAX {
                answers.clear();
            }
            answers.insert(expression.clone(), answer.clone());
        }
        answer
    }
}

/// Compares what the answers depend on.
impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        self.driver == other.driver && self.traits == other.traits
    }
}

impl Eq for Model {}

impl Hash for Model {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.driver.hash(state);
        self.traits.hash(state);
    }
}

fn compile(expression: &str) -> Compiled {
    let compiled = parser::parse(expression).and_then(|expr| {
        check::check(&expr)?;
        Ok(expr)
    });
    compiled.map(Arc::new).map_err(|message| CelError::Compile(message.into()))
}

/// Returns the answer and what it cost.
fn evaluate(expr: &Expr, driver: &str, traits: &DeviceTraits) -> (Result<bool, CelError>, u64) {
    let runtime = |message: String| CelError::Runtime(message.into());
    let device = match device_value(driver, traits) {
        Ok(device) => device,
        Err(message) => return (Err(runtime(message)), 0),
    };
    let mut evaluation = Evaluation::new(device);
    let answer = match evaluation.value(expr) {
        Ok(Value::Bool(answer)) => Ok(answer),
        Ok(other) => {
            let found = other.type_name();
            Err(runtime(format!("CEL result of type {found} could not be converted to bool")))
        }
        Err(Failure::Error(message)) => Err(runtime(message.into_owned())),
        Err(Failure::TooExpensive) => {
            Err(runtime("operation cancelled: actual cost limit exceeded".to_owned()))
        }
    };
    (answer, evaluation.run.cost())
}

/// Returns the variable `device`.
fn device_value(driver: &str, traits: &DeviceTraits) -> Result<Value, String> {
    let mut attributes = Domains::default();
    for (name, attribute) in &traits.attributes {
        let value = match attribute {
            Attribute::Int(value) => Value::Int(*value),
            Attribute::Bool(value) => Value::Bool(*value),
            Attribute::Text(text) => Value::Text(text.clone()),
            Attribute::Version(text) => match functions::parse_version(text) {
                Ok(version) => Value::Version(Arc::new(version)),
                Err(error) => return Err(format!("attribute {name}: parse semantic version: {error}")),
            },
            Attribute::Unknown => return Err(format!("attribute {name}: unsupported attribute value")),
        };
        attributes.add(name, driver, value);
    }
    let mut capacity = Domains::default();
    for (name, amount) in &traits.capacity {
        capacity.add(name, driver, Value::Quantity(amount.value));
    }
    let fields = [
        ("driver", Value::text(driver)),
        ("allowMultipleAllocations", Value::Bool(traits.multiple)),
        ("attributes", attributes.into_value()),
        ("capacity", capacity.into_value()),
    ];
    let fields = fields.into_iter().map(|(name, value)| (Key::Text(name.into()), value));
    Ok(Value::Map(Arc::new(Map::new(fields.collect()))))
}

/// Values by domain and name.
#[derive(Default)]
struct Domains(BTreeMap<Key, BTreeMap<Key, Value>>);

impl Domains {
    fn add(&mut self, qualified_name: &str, driver: &str, value: Value) {
        let (domain, name) = qualified_name.split_once('/').unwrap_or((driver, qualified_name));
        self.0.entry(Key::Text(domain.into())).or_default().insert(Key::Text(name.into()), value);
    }

    fn into_value(self) -> Value {
        let domains =
            self.0.into_iter().map(|(domain, values)| (domain, Value::Map(Arc::new(Map::new(values)))));
        Value::Map(Arc::new(Map { entries: domains.collect(), empty_map_by_default: true }))
    }
}
