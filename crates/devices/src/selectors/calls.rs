//! Parsed calls: macros and functions.

use super::functions::{self, Function};
use super::parser::{Node, Parsed, shown};
use super::syntax::{Expr, Macro, MacroKind};

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{}' (in container '')", shown(name))
}

fn deepest(nodes: &[Node]) -> u32 {
    nodes.iter().map(|node| node.depth).max().unwrap_or(0)
}

/// `name(arguments)`.
pub(super) fn global_call(name: &str, arguments: Vec<Node>) -> Parsed {
    if name == "has" && arguments.len() == 1 {
        let depth = deepest(&arguments);
        return match arguments.into_iter().next().map(|node| node.expr) {
            Some(Expr::Select { operand, field, optional: false }) => {
                Node::over(depth, Expr::Has { operand, field })
            }
            _ => Err("invalid argument to has() macro".to_owned()),
        };
    }
    let function = functions::find(name, false).ok_or_else(|| undeclared(name))?;
    call(function, arguments)
}

fn call(function: &'static Function, arguments: Vec<Node>) -> Parsed {
    let depth = deepest(&arguments);
    Node::over(depth, Expr::Call(function, arguments.into_iter().map(|node| node.expr).collect()))
}

/// `target.name(arguments)`.
pub(super) fn member_call(target: Node, name: &str, mut arguments: Vec<Node>) -> Parsed {
    if name == "bind" && arguments.len() == 3 && matches!(&target.expr, Expr::Name(name) if &**name == "cel")
    {
        let variable = arguments.remove(0);
        let value = arguments.remove(0);
        return declare(MacroKind::Bind, value, vec![variable], None, arguments);
    }
    if let Some((kind, variables, filtered)) = receiver_macro(name, arguments.len()) {
        let rest = arguments.split_off(variables);
        let mut rest = rest.into_iter();
        let filter = if filtered { rest.next() } else { None };
        return declare(kind, target, arguments, filter, rest.collect());
    }
    if let Some(qualified) = dotted(&target.expr)
        && let Some(function) = functions::find(&format!("{qualified}.{name}"), false)
    {
        return call(function, arguments);
    }
    if (name == "or" || name == "orValue") && arguments.len() == 1 {
        let alternative = arguments.remove(0);
        let depth = target.depth.max(alternative.depth);
        let arguments = Box::new([target.expr, alternative.expr]);
        return Node::over(depth, Expr::Alternative { value: name == "orValue", arguments });
    }
    let function = functions::find(name, true).ok_or_else(|| undeclared(name))?;
    arguments.insert(0, target);
    call(function, arguments)
}

/// Returns the macro, its number of variables, and whether a filter follows them.
fn receiver_macro(name: &str, arguments: usize) -> Option<(MacroKind, usize, bool)> {
    Some(match (name, arguments) {
        ("all", 2) => (MacroKind::All, 1, false),
        ("all", 3) => (MacroKind::All, 2, false),
        ("exists", 2) => (MacroKind::Exists, 1, false),
        ("exists", 3) => (MacroKind::Exists, 2, false),
        ("exists_one", 2) => (MacroKind::ExistsOne, 1, false),
        ("exists_one" | "existsOne", 3) => (MacroKind::ExistsOne, 2, false),
        ("map", 2) => (MacroKind::Map, 1, false),
        ("map", 3) => (MacroKind::Map, 1, true),
        ("filter", 2) => (MacroKind::Filter, 1, false),
        ("transformList", 3) => (MacroKind::Map, 2, false),
        ("transformList", 4) => (MacroKind::Map, 2, true),
        ("transformMap", 3) => (MacroKind::TransformMap, 2, false),
        ("transformMap", 4) => (MacroKind::TransformMap, 2, true),
        ("transformMapEntry", 3) => (MacroKind::TransformMapEntry, 2, false),
        ("transformMapEntry", 4) => (MacroKind::TransformMapEntry, 2, true),
        ("sortBy", 2) => (MacroKind::SortBy, 1, false),
        ("optMap", 2) => (MacroKind::OptMap, 1, false),
        ("optFlatMap", 2) => (MacroKind::OptFlatMap, 1, false),
        _ => return None,
    })
}

fn declare(
    kind: MacroKind,
    range: Node,
    variables: Vec<Node>,
    filter: Option<Node>,
    body: Vec<Node>,
) -> Parsed {
    let mut depth = range.depth.max(deepest(&body));
    if let Some(filter) = &filter {
        depth = depth.max(filter.depth);
    }
    let mut names = Vec::new();
    for variable in variables {
        match variable.expr {
            Expr::Name(name) if names.contains(&name) => {
                return Err(format!("duplicate variable name: {name}"));
            }
            Expr::Name(name) => names.push(name),
            _ => return Err("argument must be a simple name".to_owned()),
        }
    }
    let mut names = names.into_iter();
    let (Some(variable), second_variable) = (names.next(), names.next()) else {
        return Err("argument must be a simple name".to_owned());
    };
    let Some(body) = body.into_iter().next() else {
        return Err("missing argument".to_owned());
    };
    let filter = filter.map(|node| node.expr);
    let macro_expr = Macro { kind, range: range.expr, variable, second_variable, filter, body: body.expr };
    Node::over(depth, Expr::Macro(Box::new(macro_expr)))
}

/// Returns `a.b.c` as text if it is nothing but names.
fn dotted(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.to_string()),
        Expr::Select { operand, field, optional: false } => Some(format!("{}.{field}", dotted(operand)?)),
        _ => None,
    }
}
