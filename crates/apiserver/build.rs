//! Compresses the descriptions of the API, a fifth of whose size is left, and orders the functions of the program.

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::copy;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

const DESCRIPTIONS: &str = "data/descriptions.tsv";

fn main() -> Result<(), Box<dyn Error>> {
    longshore_layout::order_functions();
    println!("cargo::rerun-if-changed={DESCRIPTIONS}");
    let packed = Path::new(&env::var("OUT_DIR")?).join("descriptions.tsv.gz");
    let mut encoder = GzEncoder::new(File::create(packed)?, Compression::best());
    copy(&mut File::open(DESCRIPTIONS)?, &mut encoder)?;
    encoder.finish()?;
    Ok(())
}
