//! fjall: an LSM tree; a folder, not a file, so it is here for comparison.
use crate::Write;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

pub struct Engine {
    db: Database,
    records: Keyspace,
    index: Keyspace,
}

fn index_key(key: &str, revision: u64) -> Vec<u8> {
    [key.as_bytes(), &[0], &revision.to_be_bytes()].concat()
}

impl Engine {
    pub fn open(path: &Path) -> Self {
        let db = Database::builder(path)
            .cache_size(8 << 20)
            .max_write_buffer_size(Some(8 << 20))
            .worker_threads(1)
            .open()
            .unwrap();
        let records = db.keyspace("records", KeyspaceCreateOptions::default).unwrap();
        let index = db.keyspace("index", KeyspaceCreateOptions::default).unwrap();
        Engine { db, records, index }
    }
    pub fn commit(&self, batch: &[Write]) {
        let mut b = self.db.batch().durability(Some(PersistMode::SyncData));
        for w in batch {
            let last = self
                .index
                .range(index_key(&w.key, 0)..=index_key(&w.key, u64::MAX))
                .next_back()
                .map(|g| g.value().unwrap().to_vec());
            b.insert(
                &self.records,
                w.revision.to_be_bytes(),
                [w.key.as_bytes(), &[0], &w.value].concat(),
            );
            b.insert(
                &self.index,
                index_key(&w.key, w.revision),
                last.unwrap_or(w.revision.to_be_bytes().to_vec()),
            );
        }
        b.commit().unwrap();
    }
    pub fn list(&self, prefix: &str, limit: usize) -> usize {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut last: Option<(Vec<u8>, Vec<u8>)> = None;
        for guard in self.index.prefix(prefix) {
            let key: fjall::Slice = guard.key().unwrap();
            let (name, revision) = key.split_at(key.len() - 8);
            match &mut last {
                Some((k, r)) if k == name => *r = revision.to_vec(),
                _ => {
                    if let Some((_, r)) = last.replace((name.to_vec(), revision.to_vec())) {
                        found.push(self.records.get(r).unwrap().unwrap().to_vec());
                        if found.len() == limit {
                            return limit;
                        }
                    }
                }
            }
        }
        if let Some((_, r)) = last {
            found.push(self.records.get(r).unwrap().unwrap().to_vec());
        }
        found.len()
    }
    pub fn drop_history(&self, below: u64) -> usize {
        let mut dropped = 0;
        let mut b = self.db.batch().durability(Some(PersistMode::SyncData));
        for guard in self.records.range(0u64.to_be_bytes()..below.to_be_bytes()) {
            let (rev, value) = guard.into_inner().unwrap();
            let revision = u64::from_be_bytes(rev[..].try_into().unwrap());
            let key = std::str::from_utf8(value.split(|b| *b == 0).next().unwrap()).unwrap();
            if self
                .index
                .range(index_key(key, revision + 1)..=index_key(key, u64::MAX))
                .next()
                .is_some()
            {
                b.remove(&self.records, rev);
                b.remove(&self.index, index_key(key, revision));
                dropped += 1;
                if dropped % 2000 == 0 {
                    std::mem::replace(
                        &mut b,
                        self.db.batch().durability(Some(PersistMode::SyncData)),
                    )
                    .commit()
                    .unwrap();
                }
            }
        }
        b.commit().unwrap();
        dropped
    }
    pub fn give_back(&mut self) {
        self.records.rotate_memtable_and_wait().unwrap();
        self.index.rotate_memtable_and_wait().unwrap();
        self.records.major_compact().unwrap();
        self.index.major_compact().unwrap();
    }
}
