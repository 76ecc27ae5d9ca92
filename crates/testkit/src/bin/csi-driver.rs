//! [`longshore_testkit::csi::CsiDriver`] as a program, for machines that a test drives: `csi-driver NAME FOLDER REGISTRY` serves until it is
//! ended.
use std::env;
use std::path::PathBuf;

use longshore_testkit::csi::{CsiDriver, CsiOptions};

#[tokio::main]
async fn main() -> Result<(), String> {
    let usage = "usage: csi-driver NAME FOLDER REGISTRY";
    let [name, folder, registry]: [String; 3] =
        env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| usage)?;
    let (folder, registry) = (PathBuf::from(folder), PathBuf::from(registry));
    let driver = CsiDriver::start(CsiOptions::new(&name), &folder, &registry);
    let _driver = driver.map_err(|error| error.to_string())?;
    std::future::pending().await
}
