//! The floor: append to a file, fdatasync, keep everything readable in memory.
use crate::Write;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

pub struct Engine {
    file: Mutex<File>,
    index: Mutex<BTreeMap<String, usize>>,
}

impl Engine {
    pub fn open(path: &Path) -> Self {
        Engine { file: Mutex::new(File::create(path).unwrap()), index: Mutex::default() }
    }
    pub fn commit(&self, batch: &[Write]) {
        let mut bytes = Vec::new();
        for w in batch {
            bytes.extend_from_slice(w.key.as_bytes());
            bytes.extend_from_slice(&w.value);
        }
        let mut file = self.file.lock().unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        let mut index = self.index.lock().unwrap();
        for w in batch {
            index.insert(w.key.clone(), w.value.len());
        }
    }
    pub fn list(&self, prefix: &str, limit: usize) -> usize {
        self.index
            .lock()
            .unwrap()
            .range(prefix.to_string()..)
            .take_while(|(k, _)| k.starts_with(prefix))
            .take(limit)
            .count()
    }
    pub fn drop_history(&self, _: u64) -> usize {
        0
    }
    pub fn give_back(&mut self) {}
}
