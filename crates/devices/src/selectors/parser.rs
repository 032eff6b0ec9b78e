//! Parser of CEL, with the macros that Kubernetes enables.
//!
//! It recurses only for nested expressions, and refuses an expression that is nested too deeply: whatever walks the
//! result may recurse.

use std::sync::Arc;

use super::calls::{global_call, member_call};
use super::lexer::{Token, tokens};
use super::syntax::{Element, Entry, Expr, Operator};
use super::value::Value;

/// The limit of the parser of `cel-go`, which counts a little differently.
pub(super) const DEPTH_MAX: u32 = 250;

/// Names that no variable or function may have.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Operators between two operands, by how tightly they bind, loosest first; all group to the left.
const LEVELS: [&[(&str, Infix)]; 5] = [
    &[("||", Infix::Or)],
    &[("&&", Infix::And)],
    &[
        ("==", Infix::Binary(Operator::Equal)),
        ("!=", Infix::Binary(Operator::NotEqual)),
        ("<", Infix::Binary(Operator::Less)),
        ("<=", Infix::Binary(Operator::LessEqual)),
        (">", Infix::Binary(Operator::Greater)),
        (">=", Infix::Binary(Operator::GreaterEqual)),
        ("in", Infix::Binary(Operator::In)),
    ],
    &[("+", Infix::Binary(Operator::Add)), ("-", Infix::Binary(Operator::Subtract))],
    &[
        ("*", Infix::Binary(Operator::Multiply)),
        ("/", Infix::Binary(Operator::Divide)),
        ("%", Infix::Binary(Operator::Modulo)),
    ],
];

#[derive(Clone, Copy)]
enum Infix {
    Or,
    And,
    Binary(Operator),
}

/// Parses an expression; an error says where.
pub(super) fn parse(source: &str) -> Result<Expr, String> {
    let mut parser = match tokens(source) {
        Ok(tokens) => Parser { tokens, at: 0, nesting: 0 },
        Err((at, message)) => return Err(located(source, at, &message)),
    };
    let parsed = parser.expression().and_then(|node| match parser.peek() {
        Token::End => Ok(node.expr),
        _ => Err(parser.unexpected()),
    });
    parsed.map_err(|message| located(source, parser.tokens[parser.at].0, &message))
}

fn located(source: &str, at: usize, message: &str) -> String {
    let before = &source[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("{line}:{column}: {message}")
}

struct Parser {
    /// With the position of the first byte of each; never empty.
    tokens: Vec<(usize, Token)>,
    at: usize,
    nesting: u32,
}

/// An expression with its depth.
pub(super) struct Node {
    pub expr: Expr,
    pub depth: u32,
}

pub(super) type Parsed = Result<Node, String>;

impl Node {
    fn leaf(expr: Expr) -> Node {
        Node { expr, depth: 1 }
    }

    /// Puts an expression over children of at most this depth.
    pub fn over(children_depth: u32, expr: Expr) -> Parsed {
        let depth = children_depth + 1;
        if depth > DEPTH_MAX { Err(too_deep()) } else { Ok(Node { expr, depth }) }
    }
}

fn too_deep() -> String {
    format!("expression recursion limit exceeded: {DEPTH_MAX}")
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        // The end is never passed.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.take(symbol) { Ok(()) } else { Err(format!("{}, expected {symbol:?}", self.unexpected())) }
    }

    fn unexpected(&self) -> String {
        match self.peek() {
            Token::End => "Syntax error: unexpected end".to_owned(),
            Token::Symbol(symbol) => format!("Syntax error: unexpected {symbol:?}"),
            Token::Name(name) => format!("Syntax error: unexpected {:?}", shown(name)),
            _ => "Syntax error: unexpected literal".to_owned(),
        }
    }

    fn expression(&mut self) -> Parsed {
        self.nesting += 1;
        if self.nesting > DEPTH_MAX {
            return Err(too_deep());
        }
        let condition = self.infix(0)?;
        let node = if self.take("?") {
            let then = self.infix(0)?;
            self.expect(":")?;
            let otherwise = self.expression()?;
            let depth = condition.depth.max(then.depth).max(otherwise.depth);
            Node::over(depth, Expr::Conditional(Box::new([condition.expr, then.expr, otherwise.expr])))?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(node)
    }

    /// Parses operands with operators that bind at least as tightly as this level. Recurses for those only that bind
    /// more tightly than the one before.
    fn infix(&mut self, level_min: usize) -> Parsed {
        let mut left = self.unary()?;
        while let Some((level, infix)) = self.operator()
            && level >= level_min
        {
            self.next();
            let right = self.infix(level + 1)?;
            left = combine(infix, left, right)?;
        }
        Ok(left)
    }

    fn operator(&self) -> Option<(usize, Infix)> {
        let text = match self.peek() {
            Token::Symbol(symbol) => symbol,
            Token::Name(name) => &**name,
            _ => return None,
        };
        LEVELS.iter().enumerate().find_map(|(level, operators)| {
            let (_, infix) = operators.iter().find(|(symbol, _)| *symbol == text)?;
            Some((level, *infix))
        })
    }

    fn unary(&mut self) -> Parsed {
        for (symbol, negated) in [("!", Expr::Not as fn(Box<Expr>) -> Expr), ("-", Expr::Negate)] {
            let mut count = 0;
            while self.is_symbol(symbol) {
                if symbol == "-" && self.number_follows() {
                    // The sign of a literal: the smallest integer has no positive counterpart.
                    break;
                }
                self.next();
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                // Two signs cancel each other out.
                let odd = count % 2 == 1;
                return if odd {
                    Node::over(operand.depth, negated(Box::new(operand.expr)))
                } else {
                    Ok(operand)
                };
            }
        }
        self.member()
    }

    fn number_follows(&self) -> bool {
        matches!(self.tokens.get(self.at + 1), Some((_, Token::Int(_) | Token::Double(_))))
    }

    fn member(&mut self) -> Parsed {
        let mut node = self.primary()?;
        loop {
            if self.take(".") {
                let optional = self.take("?");
                let field = self.field()?;
                if !optional && self.take("(") {
                    let arguments = self.arguments()?;
                    node = member_call(node, &field, arguments)?;
                } else {
                    let (depth, operand) = (node.depth, Box::new(node.expr));
                    node = Node::over(depth, Expr::Select { operand, field, optional })?;
                }
            } else if self.take("[") {
                let optional = self.take("?");
                let index = self.expression()?;
                self.expect("]")?;
                let depth = node.depth.max(index.depth);
                let (operand, index) = (Box::new(node.expr), Box::new(index.expr));
                node = Node::over(depth, Expr::Index { operand, index, optional })?;
            } else {
                return Ok(node);
            }
        }
    }

    fn field(&mut self) -> Result<Arc<str>, String> {
        match self.peek() {
            Token::Name(name) if !matches!(&**name, "in" | "true" | "false" | "null") => {}
            _ => return Err(self.unexpected()),
        }
        match self.next() {
            Token::Name(name) => Ok(name),
            _ => Err(self.unexpected()),
        }
    }

    fn primary(&mut self) -> Parsed {
        if self.take("(") {
            let node = self.expression()?;
            self.expect(")")?;
            return Ok(node);
        }
        if self.take("[") {
            return self.list();
        }
        if self.take("{") {
            return self.map();
        }
        let negative = self.is_symbol("-") && self.number_follows();
        if negative {
            self.next();
        }
        // A leading dot means the outermost scope, and the only one with names is that.
        if self.is_symbol(".") && matches!(self.tokens.get(self.at + 1), Some((_, Token::Name(_)))) {
            self.next();
        }
        let unexpected = self.unexpected();
        let value = match self.next() {
            Token::Int(magnitude) => {
                let value = if negative {
                    0i64.checked_sub_unsigned(magnitude)
                } else {
                    i64::try_from(magnitude).ok()
                };
                Value::Int(value.ok_or("invalid int literal")?)
            }
            Token::Double(value) => Value::Double(if negative { -value } else { value }),
            Token::Uint(value) => Value::Uint(value),
            Token::Text(text) => Value::Text(text),
            Token::Bytes(bytes) => Value::Bytes(bytes),
            Token::Name(name) => match &*name {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                "null" => Value::Null,
                _ if RESERVED.contains(&&*name) => return Err(format!("reserved identifier: {name}")),
                _ if self.take("(") => {
                    let arguments = self.arguments()?;
                    return global_call(&name, arguments);
                }
                _ => return Ok(Node::leaf(Expr::Name(name))),
            },
            _ => {
                self.at = self.at.saturating_sub(1);
                return Err(unexpected);
            }
        };
        Ok(Node::leaf(Expr::Literal(value)))
    }

    /// The arguments of a call after its opening parenthesis.
    fn arguments(&mut self) -> Result<Vec<Node>, String> {
        let mut arguments = Vec::new();
        if self.take(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.take(",") {
                self.expect(")")?;
                return Ok(arguments);
            }
        }
    }

    fn list(&mut self) -> Parsed {
        let mut elements = Vec::new();
        let mut depth = 0;
        while !self.take("]") {
            let optional = self.take("?");
            let node = self.expression()?;
            depth = depth.max(node.depth);
            elements.push(Element { value: node.expr, optional });
            if !self.take(",") {
                self.expect("]")?;
                break;
            }
        }
        if let Some(values) = constants(&elements) {
            return Node::over(depth, Expr::Literal(Value::List(values)));
        }
        Node::over(depth, Expr::List(elements))
    }

    fn map(&mut self) -> Parsed {
        let mut entries = Vec::new();
        let mut depth = 0;
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push(Entry { key: key.expr, value: value.expr, optional });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Node::over(depth, Expr::Map(entries))
    }
}

/// Chains of `&&` and of `||` stay flat.
fn combine(infix: Infix, left: Node, right: Node) -> Parsed {
    let depth = left.depth.max(right.depth);
    let terms = match (infix, left.expr) {
        (Infix::Binary(operator), left) => {
            return Node::over(depth, Expr::Binary(operator, Box::new([left, right.expr])));
        }
        (Infix::And, Expr::And(mut terms)) | (Infix::Or, Expr::Or(mut terms)) => {
            terms.push(right.expr);
            // The chain is already counted in the depth of the left side.
            let depth = left.depth.max(right.depth + 1);
            let expr = if matches!(infix, Infix::And) { Expr::And(terms) } else { Expr::Or(terms) };
            return Node::over(depth - 1, expr);
        }
        (_, left) => vec![left, right.expr],
    };
    Node::over(depth, if matches!(infix, Infix::And) { Expr::And(terms) } else { Expr::Or(terms) })
}

/// Returns the elements if they are literals of one type: such a list is made once.
fn constants(elements: &[Element]) -> Option<Arc<[Value]>> {
    let constant = |element: &Element| match &element.value {
        Expr::Literal(value) if !element.optional => Some(value.clone()),
        _ => None,
    };
    let values: Arc<[Value]> = elements.iter().map(constant).collect::<Option<_>>()?;
    let same = values.windows(2).all(|pair| pair[0].type_name() == pair[1].type_name());
    same.then_some(values)
}

/// Truncates a text for a message.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}
