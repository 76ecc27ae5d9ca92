//! The suite of cri-tools for container runtimes, by its own program.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use longshore_testkit::{DockerOptions, Image, ImageBuilder, Registry};

use crate::common::{Bed, socket};

/// Those of the suite's images. The engine asks one on the host in their place.
const REGISTRIES: &[&str] = &["gcr.io", "k8s.gcr.io", "registry.k8s.io"];
/// That of HTTP.
const PORT: u16 = 80;

/// Specs that ask for an image of which only its publisher can make one with this digest, or for what is not in one of
/// busybox: `ipcs`, a program that runs as its owner, a shell that has no `ls` of its own.
const UNMADE: &str = "image with digest|HostIpc|NoNewPrivs|MaskedPaths";

/// Runs the program that `CRITEST` names, with the regular expressions `FOCUS` and `SKIP` for specs, in an empty folder:
/// it removes what it finds. Images have the names that the suite asks for, and what its specs need of their content.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the program critest of cri-tools: `make critest` runs it"]
async fn critest() -> Result<()> {
    let program = std::env::var_os("CRITEST").context("CRITEST names no program")?;
    let options = DockerOptions { registries: REGISTRIES, ..DockerOptions::default() };
    let bed = Bed::with(options).await?.context("no Docker Engine")?;
    let registry = Registry::start_inside(&bed.host, PORT)?;
    for name in IMAGES {
        registry.push(&image_of(name)?, name).await?;
    }
    let (folder, endpoint) =
        (tempfile::tempdir()?, format!("unix://{}", socket(&bed.host).display()));
    let skip = std::env::var("SKIP").ok().filter(|skip| !skip.is_empty());
    let skip = skip.map_or_else(|| UNMADE.to_owned(), |skip| format!("{UNMADE}|{skip}"));
    let mut command = bed.host.command(PathBuf::from(program));
    command
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .arg(format!("--runtime-endpoint={endpoint}"))
        .arg(format!("--image-endpoint={endpoint}"))
        .arg(format!("--ginkgo.focus={}", std::env::var("FOCUS").unwrap_or_default()))
        .arg(format!("--ginkgo.skip={skip}"))
        .args(["--ginkgo.no-color", "--ginkgo.succinct"]);
    let ended = tokio::task::spawn_blocking(move || command.status()).await??;
    bed.end().await?;
    ensure!(ended.success(), "critest: {ended}");
    Ok(())
}

/// The images of the suite, after the name of their registry.
const IMAGES: &[&str] = &[
    "e2e-test-images/busybox:1.29-2",
    "e2e-test-images/httpd:2.4.39-4",
    "e2e-test-images/nginx:1.14-2",
    "k8s-staging-cri-tools/hostnet-nginx-amd64:latest",
    "k8s-staging-cri-tools/hostnet-nginx-arm64:latest",
    "k8s-staging-cri-tools/test-image-1:latest",
    "k8s-staging-cri-tools/test-image-2:latest",
    "k8s-staging-cri-tools/test-image-3:latest",
    "k8s-staging-cri-tools/test-image-latest:latest",
    "k8s-staging-cri-tools/test-image-predefined-group:latest",
    "k8s-staging-cri-tools/test-image-tag:all",
    "k8s-staging-cri-tools/test-image-tag:test",
    "k8s-staging-cri-tools/test-image-tags:1",
    "k8s-staging-cri-tools/test-image-tags:2",
    "k8s-staging-cri-tools/test-image-tags:3",
    "k8s-staging-cri-tools/test-image-user-uid-group:latest",
    "k8s-staging-cri-tools/test-image-user-uid:latest",
    "k8s-staging-cri-tools/test-image-user-username-group:latest",
    "k8s-staging-cri-tools/test-image-user-username:latest",
    "pause:3.9",
];

fn image_of(reference: &str) -> Result<Image> {
    let (name, tag) = reference.rsplit_once(':').context("no tag")?;
    let name = name.rsplit('/').next().unwrap_or(name);
    let image = Image::busybox_builder(reference)?
        .file("etc/passwd", 0o644, PASSWD)
        .file("etc/group", 0o644, GROUP)
        .file("bin/pgrep", 0o755, "#!/bin/sh\nexec pidof \"$@\"\n");
    let image = match name {
        "nginx" | "httpd" => web_server(image, name, 80),
        "hostnet-nginx-amd64" | "hostnet-nginx-arm64" => web_server(image, "nginx", 12003),
        // Tags of one name are of one image, or are not.
        "test-image-tags" => image.file("etc/name", 0o644, name),
        _ => image.file("etc/name", 0o644, format!("{name}:{tag}")),
    };
    let image = match name {
        "test-image-user-uid" => image.user("1002"),
        "test-image-user-username" => image.user("www-data"),
        "test-image-user-uid-group" => image.user("1003:users"),
        "test-image-user-username-group" => image.user("www-data:100"),
        "test-image-predefined-group" => image.user("1000"),
        _ => image,
    };
    Ok(image.build()?)
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    www-data:x:33:33:www-data:/var/www:/bin/sh\n\
    default-user:x:1000:1000::/:/bin/sh\n\
    nobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nwww-data:x:33:\nusers:x:100:\ndefault-user:x:1000:\n\
    group-defined-in-image:x:50000:default-user\nnogroup:x:65534:\n";

/// A process of that name that says its identifier, as nginx does, that it has started, as httpd does, and serves a page.
fn web_server(image: ImageBuilder, name: &str, port: u16) -> ImageBuilder {
    let script = format!(
        "#!/bin/sh\ntrap exit TERM QUIT\necho $$ >/var/run/{name}.pid\necho {name} has started\n\
         /bin/busybox httpd -f -p {port} -h /www &\nwait\n"
    );
    image
        .directory("var", 0o755)
        .directory("var/run", 0o755)
        .directory("www", 0o755)
        .file("www/index.html", 0o644, "<h1>It works! Welcome to nginx!</h1>\n")
        .directory("server", 0o755)
        .file(&format!("server/{name}"), 0o755, script)
        // As nginx calls its first process.
        .cmd(&[&format!("/server/{name}"), "master process"])
}
