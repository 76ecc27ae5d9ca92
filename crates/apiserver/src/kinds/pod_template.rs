//! PodTemplate.

use super::printers::{NAME, Printer, labels, name, string};
use super::{Kind, Strategy, validate as rules, warnings, workload};
use crate::api_types::{Resource, core};
use crate::schema::Path;

static PRINTER: Printer = Printer::new(
    &[NAME, string("Containers"), string("Images"), string("Pod Labels")],
    |object, _| {
        let template = &object["template"];
        let [names, images] = workload::containers(template);
        vec![name(object), names, images, labels(&template["metadata"]["labels"])]
    },
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        counts_generation: true,
        ..core("podtemplates", "podtemplate", "PodTemplate", "podtemplates")
    },
    strategy: Strategy {
        default: workload::default_template,
        validate: |object, _, causes| {
            rules::pod::template(&Path::root("template"), &object["template"], causes);
        },
        printer: &PRINTER,
        warnings: warnings::pod_template,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};
