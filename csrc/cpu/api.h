// What each file of Python-facing functions adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace dspark {

void register_draft(pybind11::module_& m);
void register_accept(pybind11::module_& m);
void register_schedule(pybind11::module_& m);
void register_seeded(pybind11::module_& m);

}  // namespace dspark
