# Compile options every target of this project shares, as one interface target.
add_library(cake_options INTERFACE)
# CMake 3.25 cannot ask nvcc 13 for C++20, so the standard is a plain compile option everywhere.
target_compile_options(cake_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-std=c++20 -ffp-contract=off -fno-math-errno -Wall -Wextra -Wshadow -Wno-psabi>)
if(CAKE_WERROR)
  target_compile_options(cake_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CAKE_SANITIZE)
  target_compile_options(cake_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CAKE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(cake_options INTERFACE -fsanitize=${CAKE_SANITIZE})
endif()
if(CAKE_TEST_SEGMENT)
  math(EXPR _rest "${CAKE_TEST_SEGMENT} % 64")
  if(NOT _rest EQUAL 0)
    message(FATAL_ERROR "CAKE_TEST_SEGMENT=${CAKE_TEST_SEGMENT} is not a multiple of 64")
  endif()
  target_compile_definitions(cake_options INTERFACE CAKE_TEST_SEGMENT=${CAKE_TEST_SEGMENT})
endif()
if(CAKE_PLANT_ORDER_FAULT)
  target_compile_definitions(cake_options INTERFACE CAKE_PLANT_ORDER_FAULT=1)
endif()
