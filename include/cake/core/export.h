// Symbol visibility of the shared libraries.
#pragma once

#define CAKE_API __attribute__((visibility("default")))
