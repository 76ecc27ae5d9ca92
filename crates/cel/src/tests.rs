//! What the language gives, by tables; that hostile expressions are bounded, by properties.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::crd::{self, FailureKind};
use crate::{Budget, Declarations, Error, PER_CALL_LIMIT, Value, compile};

fn evaluated(source: &str, data: &Json) -> Result<Json, String> {
    let mut declarations = Declarations::default();
    declarations.dynamic("x");
    let program = compile(source, &declarations).map_err(|issues| issues.to_string())?;
    let variables = [Value::of(data)];
    let value = program.evaluate(&variables, &mut Budget(u64::MAX)).map_err(|e| e.to_string())?;
    value.to_json().ok_or_else(|| format!("{value:?}"))
}

#[track_caller]
fn all_true(sources: &[&str]) {
    let data = json!({"a": 1, "list": [1, 2, 3], "s": "text", "m": {"k": "v"}, "namespace": "n"});
    for source in sources {
        assert_eq!(evaluated(source, &data), Ok(Json::Bool(true)), "{source}");
    }
}

#[track_caller]
fn fails(cases: &[(&str, &str)]) {
    let data = json!({"a": 1, "list": [1, 2, 3], "s": "text", "m": {"k": "v"}});
    for (source, expected) in cases {
        let found = evaluated(source, &data);
        let Err(error) = &found else { panic!("{source}: {found:?}") };
        assert!(error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn cel_operators_and_literals() {
    all_true(&[
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % 3 == 1 && -7 % 3 == -1",
        "0x10 == 16 && dyn(5u) == 5 && 1e3 == 1000.0 && .5 == 0.5",
        "-9223372036854775808 < 0",
        "!false && !!true && - -1 == 1",
        "'a' + \"b\" == 'ab' && r'\\n' == '\\\\n' && '''a'b''' == \"a'b\"",
        "'\\x41\\u00e9\\101' == 'A\u{e9}A'",
        "b'\\xff' == b'\\377' && size(b'abc') == 3",
        "1 < 2 && 1.5 < 2 && 2u > 1 && 'a' < 'b' && true > false",
        "[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && !(4 in [1, 2])",
        "{'a': 1}['a'] == 1 && {'a': 1}.a == 1 && 'a' in {'a': 1}",
        "{1: 'x'}[dyn(1u)] == 'x'",
        "true ? true : 1/0 == 1",
        "(1/0 == 1 || true) && !(1/0 == 1 && false)",
        "null == null && x.a != null",
        "type(1) == int && type('a') == string && type(type(1)) == type && type([]) == list",
        "x.a == 1 && x.list[1] == 2 && x['s'] == 'text' && x.namespace == 'n'",
        "size('h\u{e9}') == 2 && 'abc'.size() == 3 && [1].size() == 1",
        "int('42') == 42 && string(42) == '42' && double('1.5') == 1.5 && uint(3) == 3u",
        "string(1.0) == '1' && string(b'abc') == 'abc' && bool('true') && int(3.9) == 3",
        "[dyn(1), 'a'] == [dyn(1), 'a'] // a comment",
        "dyn(1) == 1.0 && dyn(1u) == dyn(1)",
    ]);
}

#[test]
fn cel_macros() {
    all_true(&[
        "has(x.a) && !has(x.b) && has(x.m.k)",
        "[1, 2].all(i, i > 0) && ![1, 2].all(i, i > 1)",
        "[0, 2].exists(i, 10 / i == 5)",
        "![1, 0].all(i, i / 0 == 1 && i > 0) || true",
        "[1, 2, 2].exists_one(i, i == 1) && ![1, 1].existsOne(i, i == 1)",
        "[1, 2].map(i, i * 2) == [2, 4] && [1, 2, 3].map(i, i > 1, i * 2) == [4, 6]",
        "[1, 2, 3].filter(i, i > 1) == [2, 3]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "[1, 2].map(i, [3].map(j, i + j)) == [[4], [5]]",
        "[1, 2].all(i, v, i + 1 == v) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "[1, 2].transformList(i, v, i + v) == [1, 3]",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}",
        "cel.bind(y, 3, y * y) == 9",
        "[3, 1, 2].sortBy(e, -e) == [3, 2, 1]",
        "x.list.exists(i, i == 3)",
    ]);
    fails(&[
        ("[1].all(1, true)", "argument must be a simple name"),
        ("[1].map(x.y, true)", "argument is not an identifier"),
        ("has(x)", "invalid argument to has() macro"),
        ("(1).all(i, true)", "cannot be range of a comprehension"),
    ]);
}

#[test]
fn cel_optional_values() {
    all_true(&[
        "x.?a.hasValue() && !x.?b.hasValue() && x.?b.orValue(5) == 5",
        "x.?m.k.orValue('') == 'v' && x.?n.k.orValue('z') == 'z'",
        "x.list[?0].value() == 1 && !x.list[?9].hasValue() && x.m[?'q'].or(x.m[?'k']).value() == 'v'",
        "optional.of(1).optMap(v, v + 1).value() == 2 && !optional.none().optMap(v, v).hasValue()",
        "optional.ofNonZeroValue('').hasValue() == false",
        "[?x.?a, ?x.?b] == [1] && {?'k': x.?b} == {}",
        "has(x.?m.k)",
        "optional.of(2).optFlatMap(v, optional.of(v * 2)) == optional.of(4)",
    ]);
    fails(&[("optional.none().value()", "optional.none() dereference")]);
}

#[test]
fn cel_strings_lists_and_sets() {
    all_true(&[
        "'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')",
        "'abc'.charAt(1) == 'b' && 'abc'.charAt(3) == ''",
        "'tacocat'.indexOf('ac') == 1 && 'tacocat'.indexOf('a', 3) == 5 && 'a'.indexOf('b') == -1",
        "'tacocat'.lastIndexOf('at') == 5 && 'tacocat'.lastIndexOf('a', 3) == 1",
        "'TacoCat'.lowerAscii() == 'tacocat' && 'a'.upperAscii() == 'A'",
        "'hello hello'.replace('he', 'we') == 'wello wello' && 'aaa'.replace('a', 'b', 2) == 'bba'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'",
        "'  a '.trim() == 'a' && ['a', 'b'].join('-') == 'a-b' && strings.quote('a\"') == '\"a\\\\\"\"'",
        "'%s is %d and %.2f %x %e'.format([dyn('a'), 1, 2.5, 255, 1000.0]) == 'a is 1 and 2.50 ff 1.000000e+03'",
        "'%s %s'.format([dyn([1, 2]), {'k': true}]) == '[1, 2] {k: true}'",
        "'abc'.matches('^a.c$') && 'abc 123'.find('[0-9]+') == '123' && '1 2'.findAll('\\\\d') == ['1', '2']",
        "'1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
        "'\u{663}'.matches('^\\\\d$') == false && '&'.matches('^[a&&b]$')",
        "[1, 2, 3].isSorted() && [1, 2].sum() == 3 && [1, 2].max() == 2 && ['b', 'a'].min() == 'a'",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2",
        "[1, 2, 3].slice(1, 2) == [2] && [[1], [2]].flatten() == [1, 2] && [2, 1].sort() == [1, 2]",
        "lists.range(3) == [0, 1, 2] && [1, 2].reverse() == [2, 1] && [1, 1, 2].distinct() == [1, 2]",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2])",
    ]);
    fails(&[
        ("'abc'.charAt(9)", "index out of range: 9"),
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("x.s.matches('(')", "invalid matches argument"),
        ("x.s.find(x.s + '(')", "Illegal regex"),
        ("[].max() == 1", "max called on empty list"),
        ("x.list.slice(0, 9)", "cannot slice(0, 9), list is length 3"),
    ]);
}

#[test]
fn cel_times() {
    all_true(&[
        "duration('1h30m') == duration('90m') && duration('1h').getMinutes() == 60",
        "timestamp('2020-01-01T00:00:00Z') + duration('1h') == timestamp('2020-01-01T01:00:00Z')",
        "timestamp('2020-02-01T00:00:00Z') - timestamp('2020-01-31T00:00:00Z') == duration('24h')",
        "timestamp('2020-03-05T06:07:08Z').getFullYear() == 2020",
        "timestamp('2020-03-05T06:07:08Z').getMonth() == 2",
        "timestamp('2020-03-05T06:07:08Z').getDate() == 5 && timestamp('2020-03-05T06:07:08Z').getDayOfWeek() == 4",
        "timestamp('2020-03-05T06:07:08Z').getHours('+02:00') == 8",
        "string(duration('90s')) == '90s' && int(timestamp('1970-01-01T00:01:00Z')) == 60",
        "string(timestamp('2020-01-01T00:00:00Z')) == '2020-01-01T00:00:00Z'",
    ]);
    fails(&[
        ("duration('x')", "invalid duration argument"),
        ("timestamp('2020')", "invalid timestamp argument"),
        ("timestamp(x.s)", "type conversion error from 'string' to 'google.protobuf.Timestamp'"),
    ]);
}

#[test]
fn cel_kubernetes_libraries() {
    all_true(&[
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('500m').add(quantity('500m')) == quantity('1')",
        "quantity('5').sub(7).sign() == -1 && quantity('2k').asInteger() == 2000 && isQuantity('1.5Gi') && !isQuantity('x')",
        "quantity('50k').asApproximateFloat() == 50000.0 && quantity('1').compareTo(quantity('2')) == -1",
        "url('https://user@example.com:80/a b?k=v&k=w').getHost() == 'example.com:80'",
        "url('https://example.com:80/a b?k=v&k=w').getHostname() == 'example.com' && url('https://a:80/').getPort() == '80'",
        "url('https://a/b%20c?k=v&k=w').getQuery() == {'k': ['v', 'w']} && url('https://a/b c').getEscapedPath() == '/b%20c'",
        "isURL('/path') && !isURL('../x') && url('https://[::1]:8/').getHostname() == '::1'",
        "isIP('::1') && !isIP('1.2.3') && ip('10.0.0.1').family() == 4 && ip('127.0.0.1').isLoopback()",
        "ip('fe80::1').isLinkLocalUnicast() && ip('8.8.8.8').isGlobalUnicast() && ip.isCanonical('::1')",
        "cidr('192.168.0.0/24').containsIP('192.168.0.7') && !cidr('192.168.0.0/24').containsIP('192.168.1.7')",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.0.0.0/8').prefixLength() == 8 && string(cidr('::/0')) == '::/0' && cidr('10.0.0.1/8').ip() == ip('10.0.0.1')",
        "semver('1.2.3').major() == 1 && semver('1.0.0-alpha').isLessThan(semver('1.0.0')) && isSemver('v1.0', true)",
        "!format.dns1123Label().validate('ok').hasValue() && format.dns1123Label().validate('No').hasValue()",
        "format.named('uuid').value() == format.uuid() && !format.named('nope').hasValue()",
        "!format.date().validate('2020-01-01').hasValue() && format.uuid().validate('x').value().size() == 1",
        "jsonpatch.escapeKey('a/b~c') == 'a~1b~0c'",
    ]);
    fails(&[
        ("ip(x.s)", "parse error during conversion from string"),
        ("quantity(x.s)", "quantities must match the regular expression"),
        ("url(x.s)", "URL parse error during conversion from string"),
        ("isSemver(1)", "found no matching overload for 'isSemver' applied to '(int)'"),
    ]);
}

#[test]
fn cel_errors_of_the_checker() {
    fails(&[
        ("y", "ERROR: <input>:1:1: undeclared reference to 'y' (in container '')\n | y\n | ^"),
        (
            "1 + 'a'",
            "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | 1 + 'a'\n | ..^",
        ),
        ("'a'.nope()", "undeclared reference to 'nope'"),
        (
            "'a'.startsWith(1)",
            "found no matching overload for 'startsWith' applied to 'string.(int)'",
        ),
        ("[1, 'a']", "expected type 'int' but found 'string'"),
        ("1 && true", "expected type 'bool' but found 'int'"),
        ("(1).f", "type 'int' does not support field selection"),
        ("1 +", "Syntax error"),
        (
            "",
            "ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', ",
        ),
        ("if", "reserved identifier: if"),
        ("Foo{a: 1}", "undeclared reference to 'Foo'"),
        ("99999999999999999999", "invalid int literal"),
    ]);
}

#[test]
fn cel_errors_of_evaluation() {
    fails(&[
        ("x.nope", "no such key: nope"),
        ("x.list[9]", "index out of bounds: 9"),
        ("x.a / 0", "division by zero"),
        ("x.a % 0", "modulus by zero"),
        ("9223372036854775807 + x.a", "integer overflow"),
        ("x.a + x.s", "no such overload"),
        ("x.s && true", "no such overload"),
        ("x.a.b", "no such overload"),
        ("{x.list: 1}", "unsupported key type"),
    ]);
}

#[test]
fn cel_authorizer_is_asked() {
    use crate::{Attributes, Authorizer, Decision, Opaque, Type};
    #[derive(Debug)]
    struct Fake;
    impl Authorizer for Fake {
        fn authorize(&self, attributes: &Attributes) -> Decision {
            let allowed = attributes.resource == "pods"
                && attributes.verb == "create"
                && attributes.namespace == "ns"
                || attributes.path.as_deref() == Some("/healthz");
            Decision { allowed, reason: "r".to_owned(), error: None }
        }
    }
    let mut declarations = Declarations::default();
    let of = Type::Named("kubernetes.authorization.Authorizer");
    declarations.variable_of_type("authorizer", of);
    for (source, expected) in [
        ("authorizer.group('').resource('pods').namespace('ns').check('create').allowed()", true),
        ("authorizer.group('').resource('pods').check('create').allowed()", false),
        ("authorizer.path('/healthz').check('get').reason() == 'r'", true),
        ("authorizer.serviceAccount('ns', 'sa').path('/healthz').check('get').errored()", false),
    ] {
        let program = compile(source, &declarations).unwrap();
        let authorizer = Opaque::Authorizer(std::sync::Arc::new(Fake), None);
        let variables = [Value::Opaque(std::sync::Arc::new(authorizer))];
        let mut budget = Budget(10_000_000);
        let found = program.evaluate(&variables, &mut budget).unwrap();
        assert_eq!(found.to_json(), Some(expected.into()), "{source}");
        assert!(budget.0 < 10_000_000 - 350_000, "a check costs much: {}", budget.0);
    }
}

#[test]
fn cel_costs_are_upstreams() {
    let mut declarations = Declarations::default();
    declarations.dynamic("x");
    let data = json!({"list": [1, 2, 3], "s": "0123456789", "a": {"b": 1}});
    for (source, cost) in [
        ("true", 0),
        ("x.a.b == 1", 4),
        ("has(x.a)", 1),
        ("x.s.startsWith('0')", 3),
        ("x.s.contains('01')", 3),
        // list and name, and for each: condition (2), accumulator, variable, comparison; and the result
        ("x.list.all(i, i > 0)", 2 + 3 * 5 + 1),
        ("x.list.map(i, i) == []", 2 + 3 * 13 + 1),
        ("'abc' in ['abc', 'def']", 0),
    ] {
        let program = compile(source, &declarations).unwrap();
        let mut budget = Budget(PER_CALL_LIMIT);
        let variables = [Value::of(&data)];
        program.evaluate(&variables, &mut budget).unwrap();
        assert_eq!(PER_CALL_LIMIT - budget.0, cost, "{source}");
    }
}

#[test]
fn cel_hostile_expressions_are_bounded() {
    let nested = |open: &str, close: &str, count: usize| {
        format!("{}1{}", open.repeat(count), close.repeat(count))
    };
    for source in [
        nested("(", ")", 10_000),
        nested("[", "]", 10_000),
        nested("{1: ", "}", 10_000),
        nested("x.map(i, ", ")", 5_000),
        format!("{}1", "-(".repeat(20_000)),
        format!("{}true", "!".repeat(50_000)),
        format!("x{}", ".a".repeat(20_000)),
        format!("x{}", "[0]".repeat(20_000)),
        format!("1{}", " + 1".repeat(20_000)),
        format!("x{}", ".optMap(v, v)".repeat(2_000)),
        format!("{}1", "x ? 1 : ".repeat(5_000)),
        "a".repeat(200_000),
    ] {
        let result = evaluated(&source, &Json::Null);
        assert!(source.starts_with('!') || result.is_err());
    }
    // a wide one is fine
    let wide = vec!["true"; 5_000].join(" && ");
    assert_eq!(evaluated(&wide, &Json::Null), Ok(Json::Bool(true)));
    // the deepest that is taken evaluates on a small stack
    let deep = nested("[", "]", 70);
    assert!(evaluated(&format!("size({deep}) == 1 && {deep} == {deep}"), &Json::Null).is_ok());
    let chain = format!("x{} == x", " + x".repeat(100));
    assert!(evaluated(&chain, &json!(1)).is_ok());

    let long = json!({"s": "a".repeat(1_000_000), "l": vec![1; 10_000]});
    let limit = Error::CostLimit.to_string();
    let twice = |of: &str| {
        let mut source = of.to_owned();
        for level in 0..40 {
            source = format!("cel.bind(v{level}, {source}, [v{level}, v{level}])");
        }
        source
    };
    for source in [
        "x.s.replace('', x.s)".to_owned(),
        "x.s.replace('a', x.s) == ''".to_owned(),
        "x.l.all(a, x.l.all(b, x.l.all(c, a == b)))".to_owned(),
        "x.l.map(a, x.l.map(b, x.s + x.s)).size() > 0".to_owned(),
        "lists.range(9000000000000000000).size() > 0".to_owned(),
        "x.s.matches('(a*)*b' + x.s)".to_owned(),
        format!("cel.bind(t, {}, t == t)", twice("1")),
        format!("'%s'.format([{}])", twice("1")),
        "x.s.split('').map(c, x.s.split('')).size() == 0".to_owned(),
    ] {
        assert_eq!(evaluated(&source, &long), Err(limit.clone()), "{source}");
    }
}

fn schema() -> Json {
    json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "x-kubernetes-validations": [
                    {"rule": "self.min <= self.max", "message": "min is above max", "fieldPath": ".min"},
                    {"rule": "self.min >= oldSelf.min", "messageExpression": "string(oldSelf.min)"},
                    {"rule": "!has(self.__namespace__) || self.__namespace__ != 'x'", "reason": "FieldValueForbidden"},
                ],
                "properties": {
                    "min": {"type": "integer"},
                    "max": {"type": "integer"},
                    "namespace": {"type": "string", "maxLength": 10},
                    "set": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 5}},
                    "any": {"x-kubernetes-int-or-string": true},
                    "size": {"type": "string", "maxLength": 5, "x-kubernetes-validations": [{"rule": "self != oldSelf || self == 'a'"}]},
                    "named": {
                        "type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}},
                            "x-kubernetes-validations": [{"rule": "has(self.n)"}],
                        },
                    },
                },
            },
        },
    })
}

fn failures(schema: &Json, new: &Json, old: Option<&Json>) -> Vec<String> {
    let validator = crd::validator(schema, true).unwrap();
    let report = validator.validate(new, old, &mut Budget(crate::RUNTIME_BUDGET));
    report.failures.iter().map(|f| format!("{}: {:?}: {}", f.path, f.kind, f.detail)).collect()
}

#[test]
fn cel_rules_of_schemas_are_evaluated() {
    let schema = schema();
    assert_eq!(crd::check(&schema, "s"), vec![]);
    let good = json!({"spec": {"min": 1, "max": 2}});
    assert_eq!(failures(&schema, &good, None), Vec::<String>::new());
    let bad = json!({"spec": {"min": 3, "max": 2, "namespace": "x"}});
    assert_eq!(
        failures(&schema, &bad, None),
        [
            "spec.min: Invalid: min is above max",
            "spec: Forbidden: failed rule: !has(self.__namespace__) || self.__namespace__ != 'x'",
        ]
    );
    // transition rules see the old value, and are skipped on create
    let old = json!({"spec": {"min": 2, "max": 2}});
    assert_eq!(failures(&schema, &good, Some(&old)), ["spec: Invalid: 2"]);
    // items are found by their keys
    let old = json!({"spec": {"min": 1, "max": 2, "named": [{"name": "a", "n": 5}, {"name": "b", "n": 1}]}});
    let new = json!({"spec": {"min": 1, "max": 2, "named": [{"name": "b", "n": 2}, {"name": "a", "n": 4}, {"name": "c"}]}});
    assert_eq!(
        failures(&schema, &new, Some(&old)),
        [
            "spec.named[1].n: Invalid: failed rule: self >= oldSelf",
            "spec.named[2]: Invalid: failed rule: has(self.n)",
        ]
    );
    // what was wrong before and is not touched is a warning
    let old = json!({"spec": {"min": 3, "max": 2}});
    let new = json!({"spec": {"min": 3, "max": 2}, "metadata": {"name": "a"}});
    let validator = crd::validator(&schema, true).unwrap();
    let report = validator.validate(&new, Some(&old), &mut Budget(crate::RUNTIME_BUDGET));
    assert_eq!((report.failures.len(), report.warnings.len()), (0, 1));
    // errors of evaluation
    let missing = json!({"spec": {"max": 2}});
    assert_eq!(
        failures(&schema, &missing, None),
        ["spec: Invalid: no such key: min evaluating rule: min is above max"]
    );
}

#[test]
fn cel_budget_of_an_object_runs_out() {
    let validator = crd::validator(&schema(), true).unwrap();
    let new = json!({"spec": {"min": 1, "max": 2}});
    let report = validator.validate(&new, None, &mut Budget(3));
    let last = report.failures.last().unwrap();
    assert!(last.detail.contains("running out of cost budget"), "{last:?}");
}

#[test]
fn cel_rules_are_checked_when_a_schema_is_written() {
    let with = |rule: Json, properties: Json| {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties, "x-kubernetes-validations": [rule]}}});
        let found = crd::check(&schema, "s");
        found.into_iter().map(|f| (f.path, f.kind, f.detail)).collect::<Vec<_>>()
    };
    let one = |rule: &str, properties: Json| {
        let found = with(json!({"rule": rule}), properties);
        found.into_iter().next().unwrap()
    };
    let (path, kind, detail) = one("self.nope == 1", json!({}));
    assert_eq!(path, "s.properties[spec].x-kubernetes-validations[0].rule");
    assert_eq!(kind, FailureKind::Invalid);
    assert!(
        detail.contains("compilation failed: ERROR: <input>:1:5: undefined field 'nope'"),
        "{detail}"
    );
    assert_eq!(one("1 + 1", json!({})).2, "cel expression must evaluate to a bool");
    assert_eq!(one(" ", json!({})).1, FailureKind::Required);
    let unlimited = json!({"list": {"type": "array", "items": {"type": "string"}}});
    let (_, kind, detail) = one("self.list.all(a, self.list.all(b, a == b))", unlimited.clone());
    assert_eq!(kind, FailureKind::Forbidden);
    assert!(
        detail.starts_with("estimated rule cost exceeds budget by factor of more than 100x (try"),
        "{detail}"
    );
    assert!(with(json!({"rule": "self.list.all(a, a != '')"}), json!({"list": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}}})).is_empty());
    assert_eq!(
        with(json!({"rule": "true", "messageExpression": "1"}), json!({}))[0].2,
        "messageExpression must evaluate to a string"
    );
    assert_eq!(
        with(json!({"rule": "true", "optionalOldSelf": true}), json!({}))[0].2,
        "may not be set if oldSelf is not used in rule"
    );
    assert_eq!(
        with(json!({"rule": "true", "fieldPath": ".nope"}), json!({}))[0].2,
        "must be a valid path"
    );
    let items = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
    let found = crd::check(&items, "s");
    let expected =
        "oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]";
    assert!(found.iter().any(|failure| failure.detail == expected), "{found:?}");
    // a typo in an operator, as the conformance suite makes it
    assert!(one("self.f1 = self.f2", json!({})).2.contains("Syntax error"));
}

#[test]
fn cel_sets_are_equal_in_any_order() {
    let schema = json!({
        "type": "object",
        "properties": {"s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}, "l": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": "self.s == ['b', 'a'] && self.s + ['a'] == ['a', 'b'] && self.l != ['b', 'a']"}],
    });
    let found = failures(&schema, &json!({"s": ["a", "b"], "l": ["a", "b"]}), None);
    assert_eq!(found, Vec::<String>::new());
}

proptest! {
    #[test]
    fn cel_any_text_is_bounded(source in "\\PC{0,200}") {
        let _ = evaluated(&source, &json!({"a": [1, "b"]}));
    }

    #[test]
    fn cel_any_words_are_bounded(words in proptest::collection::vec(
        proptest::sample::select(vec![
            "x", ".a", "[0]", "(", ")", "[", "]", "{", "}", ":", ",", "?", "+", "-", "*", "/", "%",
            "==", "<", "in", "&&", "||", "!", "1", "2u", "1.5", "'a'", "b'a'", "true", "null", ".all(i,",
            ".map(i,", "size(", "i", ".?", "[?", "duration('1h')", "has(", "dyn(", ".format(", "cel.bind(v,",
            ".matches(", "timestamp(", "ip(", "quantity('1')", ".optMap(v,", "string(", ".sort()",
        ]), 0..40)
    ) {
        let _ = evaluated(&words.join(" "), &json!({"a": [1, "b"]}));
    }
}
