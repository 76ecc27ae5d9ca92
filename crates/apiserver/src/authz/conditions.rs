//! Expressions that say which accesses a webhook is asked about.

use std::sync::{Arc, LazyLock};

use longshore_cel::decl::Decl;
use longshore_cel::{
    Budget, Declarations, Error, MATCH_CONDITIONS_BUDGET, Type, Value as Cel, Variables,
};
use serde_json::Value;

use crate::expressions::{self, Expression};

/// The SubjectAccessReviewSpec that expressions see.
static REQUEST: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let strings = || Decl::list(Decl::string());
    let object = |name: &str, texts: &[&str], others: Vec<(&str, Arc<Decl>)>| {
        let texts = texts.iter().map(|field| ((*field).to_owned(), Decl::string()));
        let others = others.into_iter().map(|(field, decl)| (field.to_owned(), decl));
        Decl::object(name, texts.chain(others))
    };
    let selector = |name: &str| {
        let values = vec![("values", strings())];
        let requirement = object("kubernetes.SelectorRequirement", &["key", "operator"], values);
        object(name, &["rawSelector"], vec![("requirements", Decl::list(requirement))])
    };
    let resource = object(
        "kubernetes.ResourceAttributes",
        &["namespace", "verb", "group", "version", "resource", "subresource", "name"],
        vec![
            ("fieldSelector", selector("kubernetes.FieldSelectorAttributes")),
            ("labelSelector", selector("kubernetes.LabelSelectorAttributes")),
        ],
    );
    let path = object("kubernetes.NonResourceAttributes", &["path", "verb"], Vec::new());
    object(
        "kubernetes.SubjectAccessReviewSpec",
        &["user", "uid"],
        vec![
            ("resourceAttributes", resource),
            ("nonResourceAttributes", path),
            ("groups", strings()),
            ("extra", Decl::map(strings())),
        ],
    )
});

static DECLARATIONS: LazyLock<Declarations> = LazyLock::new(|| {
    let mut declarations = Declarations::default();
    declarations.declared("request", &REQUEST);
    declarations
});

/// Compiles an expression of a review's spec, which must be a boolean.
pub(super) fn compile(source: &str) -> Result<Expression, String> {
    let program = longshore_cel::compile(source, &DECLARATIONS)
        .map_err(|issues| format!("compilation failed: {issues}"))?;
    match program.output() {
        Type::Bool => Ok(Expression { source: source.to_owned(), program: Ok(program) }),
        _ => Err("must evaluate to bool".to_owned()),
    }
}

struct Request<'v>(&'v Value);

impl<'v> Variables<'v> for Request<'v> {
    fn get(&self, _: usize) -> Result<Cel<'v>, Error> {
        Cel::declared(self.0, &REQUEST)
    }
}

/// Whether all conditions hold for the spec of a review.
pub(super) fn all_hold(conditions: &[Expression], spec: &Value) -> Result<bool, String> {
    let mut budget = Budget(MATCH_CONDITIONS_BUDGET);
    let failed = |condition: &Expression, error: &Error| {
        let source = &condition.source;
        format!("cel evaluation error: expression '{source}' resulted in error: {error}")
    };
    expressions::all_hold(
        conditions,
        |program| program.evaluate(&Request(spec), &mut budget),
        failed,
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn authorization_conditions_hold_together() {
        let spec = json!({"user": "ann", "uid": "", "groups": ["dev"], "extra": {},
            "resourceAttributes": {"namespace": "kube-system", "verb": "get", "group": "",
                "version": "v1", "resource": "pods", "subresource": "", "name": ""}});
        let holds = |sources: &[&str]| {
            let all: Vec<_> = sources.iter().map(|one| compile(one).unwrap()).collect();
            all_hold(&all, &spec)
        };
        assert_eq!(holds(&[]), Ok(true));
        assert_eq!(holds(&["request.resourceAttributes.namespace == 'kube-system'"]), Ok(true));
        assert_eq!(holds(&["has(request.nonResourceAttributes)"]), Ok(false));
        assert_eq!(holds(&["!('ops' in request.groups)", "request.user == 'bob'"]), Ok(false));
        let fails = "request.nonResourceAttributes.path == '/x'";
        assert!(holds(&[fails]).unwrap_err().contains("resulted in error"));
        assert!(holds(&[fails, "true"]).is_err());
        assert_eq!(holds(&[fails, "false"]), Ok(false), "what says no counts more than failures");
    }
}
