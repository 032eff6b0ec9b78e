use std::time::Instant;

use berth_model::Quantity;
use proptest::prelude::*;

use super::*;
use crate::DeviceCapacity;

/// Upstream's verdicts, made by `tools/selector-vectors` for the device below.
const VECTORS: &str = include_str!("../../../../tests/data/selectors.txt");

const DRIVER: &str = "gpu.example.com";

fn device() -> DeviceTraits {
    let text = |text: &str| Attribute::Text(text.into());
    let attributes = [
        ("cores", Attribute::Int(8)),
        ("healthy", Attribute::Bool(true)),
        ("broken", Attribute::Bool(false)),
        ("model", text("A100-SXM4")),
        ("empty", text("")),
        ("word", text("größe")),
        ("address", text("10.1.2.3")),
        ("version", Attribute::Version("1.2.3".into())),
        ("firmware", Attribute::Version("2.0.0-rc.1+build5".into())),
        ("other.example.com/pci", text("0000:00:1f.6")),
    ];
    let capacity = |amount: &str| DeviceCapacity { value: Quantity::parse(amount).unwrap(), policy: None };
    let capacities = [("memory", capacity("80Gi")), ("other.example.com/tiny", capacity("1500m"))];
    DeviceTraits {
        attributes: attributes.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        capacity: capacities.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        multiple: true,
    }
}

fn matches(expression: &str) -> Result<bool, CelError> {
    Selectors::default().matches(expression, DRIVER, &device())
}

fn error(expression: &str) -> String {
    matches(expression).unwrap_err().to_string()
}

/// Expressions that the API server would not accept, or never sees, for which the answer differs.
const DIFFERENT: [&str; 9] = [
    // Upstream knows the types of the elements.
    r#"1 in {"a": 1}"#,
    "[1] == [1.0]",
    // Upstream panics within the evaluation, and reports that.
    r#"device.attributes["gpu.example.com"].version in ["1.2.3"]"#,
    // A sum is of another type for upstream than a parsed quantity.
    r#"quantity("2") == quantity("1").add(1)"#,
    // Upstream has no check of keys.
    r#"{1.5: "a"}.size() == 1"#,
    r#"{[1]: "a"}.size() == 1"#,
    // The syntax of patterns.
    r#""abc".matches("a**")"#,
    r#""x".matches("x{1001}")"#,
    r#""x".matches("(?P<a>x)(?P<a>x)")"#,
];

#[test]
fn selectors_have_the_verdicts_of_upstream() {
    let device = device();
    let mut compared = 0;
    let mut unexpected = Vec::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [expression, verdict, cost, theirs] = columns[..] else {
            panic!("not four columns: {line:?}");
        };
        let (ours, our_cost) = match compile(expression) {
            Ok(compiled) => evaluate(&compiled, DRIVER, &device),
            Err(error) => (Err(error), 0),
        };
        let upstream = match verdict {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        let same = ours.as_ref().ok() == upstream.as_ref();
        if same == DIFFERENT.contains(&expression) {
            unexpected.push(format!("{expression}: {ours:?}, upstream {verdict} {theirs}"));
        }
        compared += 1;
        if same && upstream.is_some() {
            // Upstream evaluates constants before it counts, and visits maps in random order.
            let cost: u64 = cost.parse().unwrap();
            assert!(our_cost <= 2 * cost + 100, "{expression}: {our_cost}, upstream {cost}");
            assert!(cost <= 2 * our_cost + 10, "{expression}: {our_cost}, upstream {cost}");
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    assert!(compared > 850, "only {compared} vectors");
}

#[test]
fn an_error_says_when_it_happened_and_why() {
    for (expression, expected) in [
        ("?!", "CEL compile error: 1:1: Syntax error: unexpected \"?\""),
        ("true &&\n )", "CEL compile error: 2:2: Syntax error: unexpected \")\""),
        ("1", "CEL compile error: must evaluate to bool or the unknown type, not int"),
        (
            "size(1, 2) == 1",
            "CEL compile error: found no matching overload for 'size' applied to '(int, int)'",
        ),
        ("device.nothing", "CEL compile error: undefined field 'nothing'"),
        ("dra.name", "CEL compile error: undeclared reference to 'dra' (in container '')"),
        (
            r#"device.attributes["none.example.com"].missing.isGreaterThan(quantity("0"))"#,
            "CEL runtime error: no such key: missing",
        ),
        (r#"device.attributes["gpu.example.com"].model > 1"#, "CEL runtime error: no such overload"),
        (
            r#"device.attributes["gpu.example.com"].model"#,
            "CEL runtime error: CEL result of type string could not be converted to bool",
        ),
        ("[1, 2][2] == 1", "CEL runtime error: index out of bounds: 2"),
        ("1 / (device.driver.size() - 15) == 1", "CEL runtime error: division by zero"),
    ] {
        assert_eq!(error(expression), expected, "{expression}");
    }
}

#[test]
fn an_attribute_of_unknown_type_makes_all_selectors_fail() {
    let mut traits = device();
    traits.attributes.insert("numbers".into(), Attribute::Unknown);
    let failed = Selectors::default().matches("true", DRIVER, &traits).unwrap_err();
    assert_eq!(failed.to_string(), "CEL runtime error: attribute numbers: unsupported attribute value");
}

#[test]
fn an_invalid_version_makes_all_selectors_fail() {
    let mut traits = device();
    traits.attributes.insert("version".into(), Attribute::Version("1.2".into()));
    let failed = Selectors::default().matches("true", DRIVER, &traits).unwrap_err().to_string();
    assert!(failed.starts_with("CEL runtime error: attribute version: parse semantic version: "), "{failed}");
}

#[test]
fn a_device_without_traits_has_a_driver_and_no_domains() {
    let matches = |expression| {
        Selectors::default().matches(expression, "d.example.com", &DeviceTraits::default()).unwrap()
    };
    assert!(matches(r#"device.driver == "d.example.com""#));
    assert!(matches("device.attributes.size() == 0 && device.capacity.size() == 0"));
    assert!(matches(r#"!device.allowMultipleAllocations && !("d.example.com" in device.attributes)"#));
    assert!(matches(r#"device.attributes["d.example.com"].size() == 0"#));
}

#[test]
fn a_name_with_the_domain_of_the_driver_is_the_same_as_one_without() {
    let attributes = [("d.example.com/a", Attribute::Bool(true)), ("b", Attribute::Bool(true))];
    let attributes = attributes.into_iter().map(|(name, value)| (name.into(), value)).collect();
    let traits = DeviceTraits { attributes, ..DeviceTraits::default() };
    let expression = r#"cel.bind(dra, device.attributes["d.example.com"], dra.a && dra.b)"#;
    assert_eq!(Selectors::default().matches(expression, "d.example.com", &traits), Ok(true));
}

#[test]
fn a_long_expression_is_refused_before_it_is_parsed() {
    let padded = |len: usize| format!("true{}", " ".repeat(len - 4));
    assert_eq!(matches(&padded(EXPRESSION_LEN_MAX)), Ok(true));
    assert_eq!(
        error(&padded(EXPRESSION_LEN_MAX + 1)),
        "CEL compile error: expression of 10241 bytes is longer than 10240"
    );
}

/// Repetitions of a part, on both sides of a middle.
fn nested(before: &str, middle: &str, after: &str, count: usize) -> String {
    format!("{}{middle}{}", before.repeat(count), after.repeat(count))
}

#[test]
fn a_deep_expression_is_refused_and_no_expression_overflows_the_stack() {
    // Half of what a thread has by default.
    let small_stack = std::thread::Builder::new().stack_size(1 << 20);
    let tests = small_stack.spawn(|| {
        let parts = [
            ("(", "true", ")"),
            ("[", "true", "]"),
            ("{1:", "true", "}"),
            ("!(", "true", ")"),
            ("-(", "1", ")"),
            ("true ? true : ", "true", ""),
            ("true && (", "true", ")"),
            ("[1].all(x,", "true", ")"),
            ("cel.bind(a,1,", "true", ")"),
            ("optional.of(", "1", ")"),
            ("device[", "1", "]"),
            ("", "device", ".a"),
            ("", "device", "[0]"),
            ("", "1", "+1"),
            ("", "[1]", ".map(x,x)"),
            ("", "\"\"", ".trim()"),
            ("a?b:", "c", ""),
            ("(", "", ""),
            ("[", "", ""),
            ("{", "", ""),
            ("(-", "", ""),
        ];
        for (before, middle, after) in parts {
            let longest = EXPRESSION_LEN_MAX / (before.len() + after.len()) - middle.len();
            for count in [10, 50, 100, 200, 240, 249, 250, 251, 500, longest] {
                let expression = nested(before, middle, after, count);
                let verdict = matches(&expression);
                if count > 250 {
                    let message = verdict.unwrap_err().to_string();
                    let refused =
                        ["recursion limit", "undeclared", "overload", "undefined", "selection", "Syntax"];
                    assert!(refused.iter().any(|part| message.contains(part)), "{expression}: {message}");
                }
            }
        }
        for count in [10, 100, 240] {
            assert_eq!(matches(&nested("(", "true", ")", count)), Ok(true));
            assert_eq!(matches(&nested("[1].all(x, ", "true", ")", count)), Ok(true));
            assert_eq!(matches(&nested("cel.bind(a, 1, ", "true", ")", count)), Ok(true));
        }
    });
    tests.unwrap().join().unwrap();
}

#[test]
fn long_flat_expressions_are_fine() {
    assert_eq!(matches(&format!("true{}", " && true".repeat(1000))), Ok(true));
    assert_eq!(matches(&format!("false{}", "||false".repeat(1400))), Ok(false));
    assert_eq!(matches(&format!("{}true", "!".repeat(10_000))), Ok(true));
    assert_eq!(matches(&format!("{}1 == 1", "-".repeat(10_000))), Ok(true));
    assert_eq!(matches(&format!("1 in [{}1]", "0,".repeat(5000))), Ok(true));
}

const TOO_EXPENSIVE: &str = "CEL runtime error: operation cancelled: actual cost limit exceeded";

#[test]
fn an_evaluation_ends_when_it_costs_too_much() {
    let start = Instant::now();
    // Each level doubles what the level below it has.
    let doubled = |value: &str, level: &str, test: &str| {
        let levels: String = (1..60)
            .map(|at| format!("cel.bind(x{at}, {}, ", level.replace('x', &format!("x{}", at - 1))))
            .collect();
        format!("cel.bind(x0, {value}, {levels}{}{})", test.replace('x', "x59"), ")".repeat(59))
    };
    let expressions = [
        "lists.range(9223372036854775807).size() > 0".to_owned(),
        "lists.range(1000).all(a, lists.range(1000).all(b, true))".to_owned(),
        "lists.range(2000).sort().size() > 0".to_owned(),
        "lists.range(2000).distinct().size() > 0".to_owned(),
        doubled("\"a\"", "x + x", "x.size() > 0"),
        doubled("b\"a\"", "x + x", "x.size() > 0"),
        doubled("\"a\"", "x.replace(\"\", x)", "x.size() > 0"),
        doubled("\"a\"", "[x, x].join()", "x.size() > 0"),
        doubled("[1]", "x + x", "x.size() > 0"),
        // Small values, but many paths through them.
        doubled("[1]", "[x, x]", "x == x"),
        doubled("[1]", "[x, x]", "x in [x]"),
        doubled("[1]", "[x, x]", "x.flatten(100).size() > 0"),
        doubled("{1: 1}", "{1: x, 2: x}", "x == x"),
        doubled("optional.of(1)", "optional.of([x, x])", "x == x"),
        // An error of the cost is not absorbed.
        "lists.range(9223372036854775807).size() > 0 || true".to_owned(),
        "true ? [1].exists(x, lists.range(2000000).size() > 0) || true : true".to_owned(),
        format!("lists.range(1000).all(x, \"{}\".matches(\"{}\"))", "a".repeat(1000), "a?".repeat(1000)),
        // Many different patterns.
        r#"lists.range(100).all(x, "a".matches("a|" + string(x)))"#.to_owned(),
    ];
    for expression in &expressions {
        assert_eq!(error(expression), TOO_EXPENSIVE, "{expression}");
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[test]
fn a_pattern_that_would_take_much_memory_is_refused() {
    let many: Vec<_> = (0..250).map(|at| format!("\"\".matches(\"\\\\pL{{20}}{at}\")")).collect();
    assert_eq!(error(&many.join("||")), "CEL compile error: more than 32 different patterns");
    for pattern in [r"(\\pL{1000}){1000}", r"((((a{100}){100}){100}){100})", r"[\\pL\\pN]{5000}"] {
        let message = error(&format!("\"a\".matches(\"{pattern}\")"));
        assert!(message.contains("error parsing regexp"), "{message}");
    }
    assert_eq!(matches(&format!("\"{}\".matches(\"^(a+)+$\")", "a".repeat(5000))), Ok(true));
}

#[test]
fn compiled_expressions_are_bounded() {
    let selectors = Selectors::default();
    for at in 0..COMPILED_MAX + 10 {
        let expression = format!("{at} >= 0");
        assert_eq!(selectors.clone().matches(&expression, DRIVER, &DeviceTraits::default()), Ok(true));
        assert!(selectors.compiled.read().len() <= COMPILED_MAX);
    }
    assert_eq!(selectors.compiled.read().len(), 10);
}

#[test]
fn answers_of_a_model_are_remembered_and_bounded() {
    let model = Model::new(DRIVER.into(), device(), Selectors::default());
    let expression: Arc<str> = "device.driver.endsWith(\"example.com\")".into();
    assert_eq!(model.matches(&expression), Ok(true));
    // The answer is known without the compiled expression.
    model.selectors.compiled.write().clear();
    assert_eq!(model.matches(&expression), Ok(true));
    assert!(model.selectors.compiled.read().is_empty());
    for at in 0..ANSWERS_MAX + 10 {
        let failing: Arc<str> = format!("1 / ({at} - {at}) == 1").into();
        assert!(model.matches(&failing).is_err());
        assert!(model.answers.lock().len() <= ANSWERS_MAX);
    }
    let long: Arc<str> = " ".repeat(EXPRESSION_LEN_MAX + 1).into();
    assert!(model.matches(&long).is_err());
    assert!(!model.answers.lock().contains_key(&long));
}

#[test]
fn models_are_equal_by_driver_and_traits() {
    let model = |driver: &str, traits| Model::new(driver.into(), traits, Selectors::default());
    let asked = model(DRIVER, device());
    asked.matches(&"true".into()).unwrap();
    assert_eq!(asked, model(DRIVER, device()));
    assert_ne!(asked, model("other.example.com", device()));
    assert_ne!(asked, model(DRIVER, DeviceTraits::default()));
}

/// Expressions of the vectors.
fn known_expressions() -> Vec<&'static str> {
    let lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split('\t').next()).collect()
}

/// Known expressions with parts replaced by parts of others.
fn mutated() -> impl Strategy<Value = String> {
    let part = proptest::sample::select(known_expressions());
    (part.clone(), part, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3usize).prop_map(
        |(target, source, at, from, mode)| {
            let mut characters: Vec<char> = target.chars().collect();
            let source: Vec<char> = source.chars().collect();
            let at = at.index(characters.len());
            let from = from.index(source.len());
            let len = 1 + (at + from) % 12;
            let patch = source.into_iter().skip(from).take(len);
            match mode {
                0 => drop(characters.splice(at..at, patch)),
                1 => drop(characters.splice(at..(at + len).min(characters.len()), patch)),
                _ => drop(characters.splice(at..(at + len).min(characters.len()), [])),
            }
            characters.into_iter().collect()
        },
    )
}

/// Expressions that are valid, or nearly.
fn generated() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "1",
        "-1",
        "0",
        "2u",
        "1.5",
        "\"a\"",
        "\"größe\"",
        "b\"x\"",
        "true",
        "null",
        "[]",
        "{}",
        "device",
        "x",
        "int",
        "9223372036854775807",
        "-9223372036854775808",
        "double(\"NaN\")",
        "optional.none()",
        "quantity(\"1Gi\")",
        "semver(\"1.2.3\")",
        "ip(\"::1\")",
        "cidr(\"10.0.0.0/8\")",
        "device.attributes[\"gpu.example.com\"].model",
        "device.attributes[\"gpu.example.com\"].cores",
        "device.capacity[\"gpu.example.com\"]",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 40, 3, |inner| {
        let binary = proptest::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in",
        ]);
        let member = proptest::sample::select(vec![
            "size",
            "sum",
            "min",
            "max",
            "sort",
            "distinct",
            "reverse",
            "flatten",
            "first",
            "last",
            "trim",
            "lowerAscii",
            "isSorted",
            "join",
            "hasValue",
            "value",
            "major",
            "asInteger",
            "isInteger",
            "masked",
            "ip",
            "unwrapOpt",
        ]);
        let with_argument = proptest::sample::select(vec![
            "contains",
            "startsWith",
            "matches",
            "find",
            "findAll",
            "charAt",
            "split",
            "substring",
            "indexOf",
            "lastIndexOf",
            "join",
            "add",
            "sub",
            "compareTo",
            "isGreaterThan",
            "includes",
            "orValue",
            "or",
            "flatten",
            "containsIP",
            "containsCIDR",
        ]);
        let with_two = proptest::sample::select(vec![
            "replace",
            "slice",
            "substring",
            "indexOf",
            "lastIndexOf",
            "split",
            "findAll",
        ]);
        let global = proptest::sample::select(vec![
            "size",
            "type",
            "dyn",
            "int",
            "uint",
            "double",
            "string",
            "bytes",
            "bool",
            "lists.range",
            "strings.quote",
            "optional.of",
            "optional.ofNonZeroValue",
            "sign",
            "isQuantity",
        ]);
        let macros = proptest::sample::select(vec![
            "all",
            "exists",
            "exists_one",
            "map",
            "filter",
            "sortBy",
            "optMap",
            "optFlatMap",
        ]);
        prop_oneof![
            (inner.clone(), binary, inner.clone()).prop_map(|(a, op, b)| format!("dyn({a}) {op} {b}")),
            (inner.clone(), member).prop_map(|(a, name)| format!("dyn({a}).{name}()")),
            (inner.clone(), with_argument, inner.clone())
                .prop_map(|(a, name, b)| format!("dyn({a}).{name}({b})")),
            (inner.clone(), with_two, inner.clone(), inner.clone())
                .prop_map(|(a, name, b, c)| format!("dyn({a}).{name}({b}, {c})")),
            (global, inner.clone()).prop_map(|(name, a)| format!("{name}(dyn({a}))")),
            (inner.clone(), macros, inner.clone())
                .prop_map(|(a, name, b)| format!("dyn({a}).{name}(x, dyn({b}))")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a})[{b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("cel.bind(x, {a}, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[dyn({a}), dyn({b})]")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{{dyn({a}): dyn({b})}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_makes_a_selector_panic(
        text in "\\PC{0,60}",
        symbols in "[\\[\\](){}.,?:!&|<>=+*/%\"'\\\\a-c0-9xub \n-]{0,60}",
        mutated in mutated(),
    ) {
        for expression in [text, symbols, mutated] {
            let _ = matches(&expression);
        }
    }

    #[test]
    fn no_values_make_a_selector_panic(expression in generated()) {
        let answer = matches(&format!("cel.bind(x, [1, 2], dyn({expression}) == 1)"));
        prop_assert_eq!(answer.clone(), matches(&format!("cel.bind(x, [1, 2], dyn({expression}) == 1)")));
    }

    #[test]
    fn no_pattern_makes_matching_panic(pattern in "[\\[\\]^$.*+?(){}|\\\\a-cdDwWsSb0-9:&~-]{0,20}") {
        if let Ok(regex) = pattern::compile(&pattern) {
            let _ = regex.is_match("abc-019 _[]&~");
        }
    }
}
