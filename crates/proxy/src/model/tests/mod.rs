mod choice;
mod objects;
mod tracking;
