//! Whose a token is, by its claims: read by name, or by expressions.

use std::sync::{Arc, LazyLock};

use longshore_cel::decl::{Decl, escape};
use longshore_cel::{
    Budget, Declarations, Error as CelError, Program, RUNTIME_BUDGET, Type, Value as Cel,
    Variables, compile,
};
use longshore_tls::CREDENTIAL_ID;
use serde_json::{Map, Value, json};

use crate::expressions::USER_DECL;
use crate::user::{Extra, User};

/// The most values of claims that expressions see.
const MAX_NAMED: usize = 20_000;

/// Where a value comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A claim of that name.
    Claim {
        name: String,
        prefix: String,
    },
    Expression(Expression),
}

/// An expression.
#[derive(Debug)]
pub(crate) struct Expression {
    source: String,
    program: Program,
}

/// A condition of the claims.
#[derive(Debug)]
pub(crate) struct ClaimRule {
    pub(super) condition: Expression,
    pub(super) message: String,
}

/// A condition of the user.
#[derive(Debug)]
pub(crate) struct UserRule {
    pub(super) condition: Expression,
    pub(super) message: String,
}

/// How claims become a user.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) username: Source,
    pub(super) groups: Option<Source>,
    pub(super) uid: Option<Source>,
    pub(super) extra: Vec<(String, Expression)>,
    /// Claims with the values that they must have.
    pub(super) required: Vec<(String, String)>,
    pub(super) claim_rules: Vec<ClaimRule>,
    pub(super) user_rules: Vec<UserRule>,
}

static CLAIMS: LazyLock<Declarations> = LazyLock::new(|| {
    let mut declarations = Declarations::default();
    declarations.variable_of_type("claims", Type::map(Type::String, Type::Dyn));
    declarations
});

static USER: LazyLock<Declarations> = LazyLock::new(|| {
    let mut declarations = Declarations::default();
    declarations.declared("user", &USER_DECL);
    declarations
});

impl Expression {
    fn new(source: &str, variables: &Declarations, is_rule: bool) -> Result<Expression, String> {
        let program =
            compile(source, variables).map_err(|issues| format!("compilation failed: {issues}"))?;
        match is_rule && !matches!(program.output(), Type::Bool) {
            true => Err("must evaluate to bool".to_owned()),
            false => Ok(Expression { source: source.to_owned(), program }),
        }
    }

    /// One that is given `claims`.
    pub(super) fn of_claims(source: &str) -> Result<Expression, String> {
        Expression::new(source, &CLAIMS, false)
    }

    /// A condition of `claims`.
    pub(super) fn of_claims_rule(source: &str) -> Result<Expression, String> {
        Expression::new(source, &CLAIMS, true)
    }

    /// A condition of `user`.
    pub(super) fn of_user_rule(source: &str) -> Result<Expression, String> {
        Expression::new(source, &USER, true)
    }

    fn evaluate<'v>(
        &self,
        variable: &Variable<'v>,
        budget: &mut Budget,
    ) -> Result<Cel<'v>, CelError> {
        self.program.evaluate(variable, budget)
    }

    /// Whether the condition holds; otherwise why not.
    fn holds(
        &self,
        variable: &Variable<'_>,
        message: &str,
        budget: &mut Budget,
    ) -> Result<(), String> {
        match self.evaluate(variable, budget) {
            Ok(Cel::Bool(true)) => Ok(()),
            Ok(Cel::Bool(false)) => {
                Err(format!("validation expression '{}' failed: {message}", self.source))
            }
            Ok(_) => Err("validation expression must return a boolean".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The one variable of an expression: a document, and its type if that is known.
struct Variable<'v>(&'v Value, Option<&'v Arc<Decl>>);

impl<'v> Variables<'v> for Variable<'v> {
    fn get(&self, _: usize) -> Result<Cel<'v>, CelError> {
        match self.1 {
            Some(decl) => Cel::declared(self.0, decl),
            None => Ok(Cel::of(self.0)),
        }
    }
}

impl Mapping {
    /// The claim that the groups are read from, if they are read from one.
    pub(super) fn groups_claim(&self) -> Option<&str> {
        match &self.groups {
            Some(Source::Claim { name, .. }) => Some(name),
            _ => None,
        }
    }

    /// The user of a token with these claims, or why there is none.
    pub(super) fn user(&self, claims: &Value) -> Result<User, String> {
        let empty = Map::new();
        let own = claims.as_object().unwrap_or(&empty);
        let uses_expressions = matches!(self.username, Source::Expression(_))
            || matches!(self.groups, Some(Source::Expression(_)))
            || matches!(self.uid, Some(Source::Expression(_)))
            || !(self.extra.is_empty() && self.claim_rules.is_empty());
        let named = match uses_expressions {
            true => escaped(claims, &mut { MAX_NAMED })
                .ok_or_else(|| format!("the claims have more than {MAX_NAMED} values"))?,
            false => Value::Null,
        };
        let variable = Variable(&named, None);
        let mut budget = Budget(RUNTIME_BUDGET);
        let name = self.name(own, &variable, &mut budget)?;
        let groups = match &self.groups {
            Some(Source::Claim { name, prefix }) => claimed_groups(own, name, prefix)?,
            Some(Source::Expression(expression)) => {
                let value = expression.evaluate(&variable, &mut budget);
                let failed =
                    |why: String| format!("error evaluating group claim expression: {why}");
                texts(&value.map_err(|error| failed(error.to_string()))?).map_err(failed)?
            }
            None => Vec::new(),
        };
        let uid = match &self.uid {
            Some(Source::Claim { name, .. }) => text_of(own, name)
                .map_err(|why| format!("parse uid claim {name:?}: {why}"))?
                .to_owned(),
            Some(Source::Expression(expression)) => {
                let failed = |why: &str| format!("error evaluating uid claim expression: {why}");
                match expression.evaluate(&variable, &mut budget) {
                    Ok(Cel::String(uid)) => uid.to_string(),
                    Ok(_) => return Err(failed("uid claim expression must return a string")),
                    Err(error) => return Err(failed(&error.to_string())),
                }
            }
            None => String::new(),
        };
        let extra = self.extra(own, &variable, &mut budget)?;
        for (claim, wanted) in &self.required {
            if !own.contains_key(claim) {
                return Err(format!("required claim {claim} not present in ID token"));
            }
            let found = text_of(own, claim).map_err(|why| format!("parse claim {claim}: {why}"))?;
            if found != wanted {
                return Err(format!(
                    "required claim {claim} value does not match. Got = {found}, want = {wanted}"
                ));
            }
        }
        for ClaimRule { condition, message } in &self.claim_rules {
            condition
                .holds(&variable, message, &mut budget)
                .map_err(|why| format!("error evaluating claim validation expression: {why}"))?;
        }
        let user = User { name, uid, groups, extra };
        if !self.user_rules.is_empty() {
            let User { name, uid, groups, extra } = &user;
            let info = json!({"username": name, "uid": uid, "groups": groups, "extra": extra});
            let variable = Variable(&info, Some(&USER_DECL));
            for UserRule { condition, message } in &self.user_rules {
                condition
                    .holds(&variable, message, &mut budget)
                    .map_err(|why| format!("error evaluating user info validation rule: {why}"))?;
            }
        }
        Ok(user.vouched_for())
    }

    fn name(
        &self,
        claims: &Map<String, Value>,
        variable: &Variable<'_>,
        budget: &mut Budget,
    ) -> Result<String, String> {
        let failed = |why: &str| format!("error evaluating username claim expression: {why}");
        let (name, prefix) = match &self.username {
            Source::Expression(expression) => {
                return match expression.evaluate(variable, budget) {
                    Ok(Cel::String(name)) if name.is_empty() => {
                        Err("empty username via CEL expression is not allowed".to_owned())
                    }
                    Ok(Cel::String(name)) => Ok(name.to_string()),
                    Ok(_) => Err(failed("username claim expression must return a string")),
                    Err(error) => Err(failed(&error.to_string())),
                };
            }
            Source::Claim { name, prefix } => (name, prefix),
        };
        let found = text_of(claims, name)
            .map_err(|why| format!("parse username claims {name:?}: {why}"))?;
        if name == "email" {
            match claims.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false)) => return Err("email not verified".to_owned()),
                Some(_) => {
                    return Err("parse 'email_verified' claim: it is not a boolean".to_owned());
                }
            }
        }
        match found.is_empty() {
            true => Err("an empty username is not allowed".to_owned()),
            false => Ok(format!("{prefix}{found}")),
        }
    }

    fn extra(
        &self,
        claims: &Map<String, Value>,
        variable: &Variable<'_>,
        budget: &mut Budget,
    ) -> Result<Extra, String> {
        let mut extra = Extra::new();
        if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
            extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
        }
        for (key, expression) in &self.extra {
            let failed = |why: String| {
                format!("error evaluating extra claim expression: {}: {why}", expression.source)
            };
            let value = expression.evaluate(variable, budget);
            let values = texts(&value.map_err(|error| failed(error.to_string()))?);
            let values = values.map_err(failed)?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }
}

/// A claim that is text.
fn text_of<'a>(claims: &'a Map<String, Value>, name: &str) -> Result<&'a str, &'static str> {
    match claims.get(name) {
        None => Err("claim not present"),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err("it is not a string"),
    }
}

/// Groups of a claim that is a text or a list of texts.
fn claimed_groups(
    claims: &Map<String, Value>,
    name: &str,
    prefix: &str,
) -> Result<Vec<String>, String> {
    let failed =
        || format!("parse groups claim {name:?}: it is neither a string nor a list of them");
    let group = |value: &Value| match value {
        Value::String(group) => Ok(format!("{prefix}{group}")),
        _ => Err(failed()),
    };
    match claims.get(name) {
        Some(Value::Array(groups)) => groups.iter().map(group).collect(),
        Some(one) => group(one).map(|group| vec![group]),
        None => Ok(Vec::new()),
    }
}

/// The texts of a value that is a text, a list of texts or null; empty ones do not count.
fn texts(value: &Cel<'_>) -> Result<Vec<String>, String> {
    let wrong = || "expression must return a string or a list of strings".to_owned();
    let mut texts = match value {
        Cel::Null => Vec::new(),
        Cel::String(text) => vec![text.to_string()],
        Cel::List(list) => list
            .iter()
            .map(|item| match item {
                Ok(Cel::String(text)) => Ok(text.to_string()),
                Ok(_) => Err(wrong()),
                Err(error) => Err(error.to_string()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

/// The claims as expressions see them: of a name that expressions cannot write, there is another that
/// they can (`a-b` as `a__dash__b`). `None`: they are more than so many, as each level may double them.
fn escaped(claims: &Value, left: &mut usize) -> Option<Value> {
    *left = left.checked_sub(1)?;
    Some(match claims {
        Value::Object(map) => {
            let mut all = Map::new();
            for (name, value) in map {
                // a claim that has the other name of another must not pass for it
                if !name.contains("__") {
                    all.insert(name.clone(), escaped(value, left)?);
                }
            }
            for (name, value) in map {
                match escape(name) {
                    Some(other) if other != *name => drop(all.insert(other, escaped(value, left)?)),
                    _ => {}
                }
            }
            Value::Object(all)
        }
        Value::Array(items) => {
            items.iter().map(|item| escaped(item, left)).collect::<Option<_>>()?
        }
        other => other.clone(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn jwt_claims_that_double_at_each_level_are_refused() {
        let deep = (0..60).fold(json!(1), |inner, _| json!({"a-b": inner}));
        assert_eq!(escaped(&deep, &mut { MAX_NAMED }), None);
        let plain = escaped(&json!({"a-b": [1, {"c__d": 2}]}), &mut { MAX_NAMED }).unwrap();
        assert_eq!(plain["a__dash__b"], plain["a-b"]);
    }

    fn expression(source: &str) -> Source {
        Source::Expression(Expression::of_claims(source).unwrap())
    }

    fn claim(name: &str, prefix: &str) -> Source {
        Source::Claim { name: name.to_owned(), prefix: prefix.to_owned() }
    }

    fn mapping(username: Source) -> Mapping {
        Mapping {
            username,
            groups: None,
            uid: None,
            extra: Vec::new(),
            required: Vec::new(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
        }
    }

    #[test]
    fn jwt_claims_become_a_user() {
        let claims = json!({"sub": "ann", "roles": ["dev", "ops"], "id": "7", "jti": "t1"});
        let by_name = Mapping {
            groups: Some(claim("roles", "oidc:")),
            uid: Some(claim("id", "")),
            ..mapping(claim("sub", "https://i#"))
        };
        let user = by_name.user(&claims).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("https://i#ann", "7"));
        assert_eq!(user.groups, ["oidc:dev", "oidc:ops", "system:authenticated"]);
        assert_eq!(user.extra[CREDENTIAL_ID], ["JTI=t1"]);
        let by_expression = Mapping {
            groups: Some(expression("claims.roles.map(r, 'x:' + r)")),
            uid: Some(expression("claims.id")),
            extra: vec![
                ("a.io/all".to_owned(), Expression::of_claims("claims.roles").unwrap()),
                ("a.io/none".to_owned(), Expression::of_claims("''").unwrap()),
                (
                    "a.io/absent".to_owned(),
                    Expression::of_claims("claims.?x.orValue(null)").unwrap(),
                ),
            ],
            ..mapping(expression("claims.sub + '@i'"))
        };
        let user = by_expression.user(&claims).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("ann@i", "7"));
        assert_eq!(user.groups, ["x:dev", "x:ops", "system:authenticated"]);
        assert_eq!(user.extra["a.io/all"], ["dev", "ops"]);
        assert_eq!(user.extra.len(), 2);
        let single = Mapping { groups: Some(claim("role", "")), ..mapping(claim("sub", "")) };
        let user = single.user(&json!({"sub": "a", "role": "dev"})).unwrap();
        assert_eq!(user.groups, ["dev", "system:authenticated"]);
    }

    #[test]
    fn jwt_claims_that_do_not_fit_are_refused() {
        let of = |username, claims: Value| mapping(username).user(&claims).unwrap_err();
        for (username, claims, why) in [
            (claim("sub", ""), json!({}), "claim not present"),
            (claim("sub", ""), json!({"sub": 1}), "not a string"),
            (claim("sub", "p:"), json!({"sub": ""}), "empty username"),
            (claim("email", ""), json!({"email": "a@b", "email_verified": false}), "not verified"),
            (
                claim("email", ""),
                json!({"email": "a@b", "email_verified": "true"}),
                "not a boolean",
            ),
            (expression("claims.sub"), json!({}), "no such key"),
            (expression("claims.sub"), json!({"sub": ["a"]}), "must return a string"),
            (expression("claims.sub"), json!({"sub": ""}), "empty username via CEL"),
        ] {
            let error = of(username, claims.clone());
            assert!(error.contains(why), "{claims}: {error}");
        }
        let groups = Mapping { groups: Some(claim("g", "")), ..mapping(claim("sub", "")) };
        for (claims, why) in [
            (json!({"sub": "a", "g": 1}), "neither a string"),
            (json!({"sub": "a", "g": ["x", 1]}), "neither a string"),
        ] {
            let error = groups.user(&claims).unwrap_err();
            assert!(error.contains(why), "{claims}: {error}");
        }
        assert_eq!(groups.user(&json!({"sub": "a"})).unwrap().groups, ["system:authenticated"]);
    }

    #[test]
    fn jwt_rules_of_claims_and_users_hold_or_refuse() {
        let rule = |source| Expression::of_claims_rule(source).unwrap();
        let own = Mapping {
            required: vec![("hd".to_owned(), "example.com".to_owned())],
            claim_rules: vec![ClaimRule {
                condition: rule("claims.exp - claims.nbf <= 86400"),
                message: "total lifetime".to_owned(),
            }],
            user_rules: vec![UserRule {
                condition: Expression::of_user_rule("!user.username.startsWith('system:')")
                    .unwrap(),
                message: "reserved".to_owned(),
            }],
            ..mapping(claim("sub", ""))
        };
        let good = json!({"sub": "a", "hd": "example.com", "exp": 100, "nbf": 50});
        assert!(own.user(&good).is_ok());
        for (field, value, why) in [
            ("hd", json!("evil.com"), "value does not match. Got = evil.com, want = example.com"),
            ("hd", json!(null), "not a string"),
            ("exp", json!(1_000_000), "failed: total lifetime"),
            ("exp", json!("x"), "error evaluating claim validation"),
            ("sub", json!("system:admin"), "failed: reserved"),
        ] {
            let mut claims = good.clone();
            claims[field] = value;
            let error = own.user(&claims).unwrap_err();
            assert!(error.contains(why), "{field}: {error}");
        }
        let without = json!({"sub": "a"});
        assert!(own.user(&without).unwrap_err().contains("required claim hd not present"));
    }

    #[test]
    fn jwt_claims_have_escaped_names_in_expressions() {
        let own = mapping(expression("claims.a__dash__b"));
        assert_eq!(own.user(&json!({"a-b": "ann"})).unwrap().name, "ann");
        assert_eq!(own.user(&json!({"a-b": "ann", "a__dash__b": "eve"})).unwrap().name, "ann");
        assert!(own.user(&json!({"a__dash__b": "eve"})).is_err(), "it is not that claim");
        let nested = mapping(expression("claims.o.x__dot__y"));
        assert_eq!(nested.user(&json!({"o": {"x.y": "ann"}})).unwrap().name, "ann");
    }

    #[test]
    fn jwt_expressions_of_great_cost_are_refused() {
        let all: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
        let costly =
            "claims.l.all(a, claims.l.all(b, claims.l.exists(c, c == a || c == b))) ? 'x' : 'y'";
        let error = mapping(expression(costly)).user(&json!({"l": all})).unwrap_err();
        assert!(error.contains("cost") || error.contains("budget"), "{error}");
    }
}
